//! The tables of abort codes: name, number, sentence.
//!
//! Sources: the error tables of the AFS interfaces (base plus place in the table), and the volume
//! package's numbers. Plain errno aborts carry Linux's errno numbers.

use super::AbortCode;

/// One known code.
pub(super) struct Entry {
    pub(super) code: AbortCode,
    pub(super) name: &'static str,
    pub(super) sentence: &'static str,
}

macro_rules! codes {
    ($( $name:ident = $code:literal, $sentence:literal; )*) => {
        impl AbortCode {
            $(
                #[doc = concat!($sentence, ".")]
                pub const $name: Self = Self($code);
            )*
        }

        /// Every code below that is not an errno number.
        pub(super) static TABLE: &[Entry] = &[$(
            Entry { code: AbortCode::$name, name: stringify!($name), sentence: $sentence },
        )*];
    };
}

macro_rules! errno {
    ($( $name:ident = $code:literal; )*) => {
        /// Plain errno numbers that servers send, as Linux numbers them.
        impl AbortCode {
            $(
                #[doc = concat!("The errno `", stringify!($name), "`.")]
                pub const $name: Self = Self($code);
            )*
        }
    };
}

codes! {
    // Rx: the transport.
    RX_CALL_DEAD = -1, "the peer does not answer, or the server ended an old call";
    RX_INVALID_OPERATION = -2, "the peer has no such service or security class";
    RX_CALL_TIMEOUT = -3, "the call took longer than it may";
    RX_EOF = -4, "the call has no more data";
    RX_PROTOCOL_ERROR = -5, "the peer broke the rules of Rx";
    RX_USER_ABORT = -6, "the program at the other end gave the call up";
    RX_ADDRINUSE = -7, "the UDP port is in use";
    RX_MSGSIZE = -8, "a packet was too large for the path";
    VRESTARTING = -100, "the server is starting, try again soon";
    RXGEN_CC_MARSHAL = -450, "the client could not send its arguments";
    RXGEN_CC_UNMARSHAL = -451, "the client did not understand the results";
    RXGEN_SS_MARSHAL = -452, "the server could not send its results";
    RXGEN_SS_UNMARSHAL = -453, "the server did not understand the arguments";
    RXGEN_DECODE = -454, "the server could not read which procedure is called";
    RXGEN_OPCODE = -455, "the server has no such procedure";
    RXGEN_SS_XDRFREE = -456, "the server failed to free its arguments";
    RXGEN_CC_XDRFREE = -457, "the client failed to free its results";

    // The file server and the volume package.
    VSALVAGE = 101, "the volume needs salvage";
    VNOVNODE = 102, "there is no such file, or its number is used by another";
    VNOVOL = 103, "the volume is not on this server";
    VVOLEXISTS = 104, "the volume exists already";
    VNOSERVICE = 105, "the volume is not in service";
    VOFFLINE = 106, "the volume is off line";
    VONLINE = 107, "the volume is on line already";
    VDISKFULL = 108, "the partition is full";
    VOVERQUOTA = 109, "the volume's quota is used up";
    VBUSY = 110, "the volume or the server is busy, try again soon";
    VMOVED = 111, "the volume has moved to another server";
    VIO = 112, "reading or writing the disk failed";
    VSALVAGING = 113, "the volume is being salvaged";
    VRESTRICTED = 120, "the volume's policy does not allow it";
    VICECONNBAD = 1234, "the connection cannot be used any more";
    VICETOKENDEAD = 1235, "the token of this connection has expired";

    // VL: the volume location database.
    VL_IDEXIST = 363520, "a volume of that id is listed already";
    VL_IO = 363521, "the volume location database cannot be read or written";
    VL_NAMEEXIST = 363522, "a volume of that name is listed already";
    VL_CREATEFAIL = 363523, "the volume location entry cannot be created";
    VL_NOENT = 363524, "no such volume is listed";
    VL_EMPTY = 363525, "the volume location database is empty";
    VL_ENTDELETED = 363526, "the volume location entry was deleted";
    VL_BADNAME = 363527, "that is not a name for a volume";
    VL_BADINDEX = 363528, "that index into the volume location database is out of range";
    VL_BADVOLTYPE = 363529, "that is not a type of volume";
    VL_BADSERVER = 363530, "that server number or address cannot be listed";
    VL_BADPARTITION = 363531, "that is not a partition";
    VL_REPSFULL = 363532, "the volume has as many sites as can be listed";
    VL_NOREPSERVER = 363533, "the volume has no such read-only site";
    VL_DUPREPSERVER = 363534, "the volume has that read-only site already";
    VL_RWNOTFOUND = 363535, "the volume's read-write site is not listed";
    VL_BADREFCOUNT = 363536, "the reference count of a server is wrong";
    VL_SIZEEXCEEDED = 363537, "the list is too long for one answer";
    VL_BADENTRY = 363538, "that is not a valid volume location entry";
    VL_BADVOLIDBUMP = 363539, "that number of volume ids cannot be reserved";
    VL_IDALREADYHASHED = 363540, "the volume id is listed in the table already";
    VL_ENTRYLOCKED = 363541, "the volume location entry is locked by another operation";
    VL_BADVOLOPER = 363542, "that is not a volume operation to lock for";
    VL_BADRELLOCKTYPE = 363543, "that is not a way to release a lock";
    VL_RERELEASE = 363544, "the last release of the volume did not finish";
    VL_BADSERVERFLAG = 363545, "those flags are not valid for a site";
    VL_PERM = 363546, "only administrators may do that to the volume location database";
    VL_NOMEM = 363547, "the volume location server is out of memory";
    VL_BADVERSION = 363548, "the volume location database has another format";
    VL_INDEXERANGE = 363549, "that server index is out of range";
    VL_MULTIPADDR = 363550, "the addresses belong to more than one server";
    VL_BADMASK = 363551, "that combination of selections makes no sense";
    VL_DBBAD = 363552, "the volume location database is damaged";

    // U: replicated databases (ubik).
    UNOQUORUM = 5376, "the database servers have no majority";
    UNOTSYNC = 5377, "this database server takes no changes, another one does";
    UNHOSTS = 5378, "too many database servers";
    UIOERROR = 5379, "the database or its log cannot be written";
    UINTERNAL = 5380, "the database server failed inside";
    USYNC = 5381, "the database servers disagree";
    UNOENT = 5382, "the database has no such file";
    UBADLOCK = 5383, "a database lock covers an impossible range";
    UBADLOG = 5384, "the database log cannot be read";
    UBADHOST = 5385, "a database server's name or address is wrong";
    UBADTYPE = 5386, "that is not allowed in this kind of transaction";
    UTWOENDS = 5387, "the transaction was ended twice";
    UDONE = 5388, "the transaction has ended already";
    UNOSERVERS = 5389, "no database server answers";
    UEOF = 5390, "the database ends too early";
    ULOGIO = 5391, "the database log cannot be written";
    UDEADLOCK = 5402, "the operation was ended to avoid a deadlock between database servers";

    // PT: the protection database.
    PREXIST = 267264, "that name is taken";
    PRIDEXIST = 267265, "that id is taken, or the member is in the group already";
    PRNOIDS = 267266, "no id is free";
    PRDBFAIL = 267267, "the protection database cannot be read or written";
    PRNOENT = 267268, "there is no such user or group";
    PRPERM = 267269, "the protection database does not allow that to the caller";
    PRNOTGROUP = 267270, "that is not a group";
    PRNOTUSER = 267271, "that is not a user";
    PRBADNAM = 267272, "that is not a valid name for a user or group";
    PRBADARG = 267273, "an argument makes no sense to the protection database";
    PRNOMORE = 267274, "the quota for creating groups is used up";
    PRDBBAD = 267275, "the protection database is damaged";
    PRGROUPEMPTY = 267276, "the group that should own it has no members";
    PRINCONSISTENT = 267277, "a group cannot be a member of itself";
    PRDBADDR = 267278, "the protection database has a bad address";
    PRTOOMANY = 267279, "too many elements";
    PRNOMEM = 267280, "the protection server is out of memory";
    PRINTERNAL = 267281, "the protection server failed inside";
    PRNAMETOOLONG = 267282, "the name is too long";

    // VOLS: the volume server.
    VOLSERTRELE_ERROR = 1492325120, "the volume transaction could not be ended";
    VOLSERNO_OP = 1492325121, "the volume server does not offer that";
    VOLSERREAD_DUMPERROR = 1492325122, "the dump is badly formatted";
    VOLSERDUMPERROR = 1492325123, "writing the dump failed";
    VOLSERATTACH_ERROR = 1492325124, "the volume could not be attached";
    VOLSERILLEGAL_PARTITION = 1492325125, "there is no such partition";
    VOLSERDETACH_ERROR = 1492325126, "the volume could not be detached";
    VOLSERBAD_ACCESS = 1492325127, "only administrators may do that to volumes";
    VOLSERVLDB_ERROR = 1492325128, "the volume location database answered an error";
    VOLSERBADNAME = 1492325129, "that is not a name for a volume";
    VOLSERVOLMOVED = 1492325130, "the volume has moved";
    VOLSERBADOP = 1492325131, "the volume server cannot do that in this state";
    VOLSERBADRELEASE = 1492325132, "the release did not reach every site";
    VOLSERVOLBUSY = 1492325133, "another transaction uses the volume";
    VOLSERNO_MEMORY = 1492325134, "the volume server is out of memory";
    VOLSERNOVOL = 1492325135, "there is no such volume";
    VOLSERMULTIRWVOL = 1492325136, "there is more than one read-write copy of the volume";
    VOLSERFAILEDOP = 1492325137, "the operation on the volume failed";

    // BZ: the basic overseer.
    BZNOTACTIVE = 39424, "the process is not active";
    BZNOENT = 39425, "there is no such process or item";
    BZBUSY = 39426, "the process is running";
    BZEXISTS = 39427, "a process of that name exists";
    BZNOCREATE = 39428, "the process cannot be created";
    BZDOM = 39429, "there are no more items";
    BZACCESS = 39430, "only administrators may do that to server processes";
    BZSYNTAX = 39431, "the overseer does not understand the command";
    BZIO = 39432, "reading or writing a file failed";
    BZNET = 39433, "sending to the client failed";
    BZBADTYPE = 39434, "that is not a type of process";
    BZKEYINUSE = 39435, "a key of that version exists";
    BZENCREQ = 39436, "the connection must be encrypted for that";

    // RXK: Kerberos security of connections (rxkad).
    RXKADINCONSISTENCY = 19270400, "the security state of the connection is inconsistent";
    RXKADPACKETSHORT = 19270401, "a security packet is too short";
    RXKADLEVELFAIL = 19270402, "the security level is not sufficient";
    RXKADTICKETLEN = 19270403, "the ticket is too long or too short";
    RXKADOUTOFSEQUENCE = 19270404, "a packet had a bad sequence number";
    RXKADNOAUTH = 19270405, "the caller is not allowed";
    RXKADBADKEY = 19270406, "the key is not usable";
    RXKADBADTICKET = 19270407, "the ticket is not valid";
    RXKADUNKNOWNKEY = 19270408, "the server does not know the key of the ticket";
    RXKADEXPIRED = 19270409, "the ticket has expired";
    RXKADSEALEDINCON = 19270410, "the data was not sealed with the connection's key";
    RXKADDATALEN = 19270411, "the data is too long";
    RXKADILLEGALLEVEL = 19270412, "that is not a security level";

    // RXGK: GSS security of connections (rxgk).
    RXGK_INCONSISTENCY = 1233242880, "the security state of the connection is inconsistent";
    RXGK_PACKETSHORT = 1233242881, "the security challenge is too short";
    RXGK_BADCHALLENGE = 1233242882, "the security challenge is not valid";
    RXGK_BADETYPE = 1233242883, "the encryption type is not allowed";
    RXGK_BADLEVEL = 1233242884, "the security level is not allowed";
    RXGK_BADKEYNO = 1233242885, "the key version is not known";
    RXGK_EXPIRED = 1233242886, "the token has expired";
    RXGK_NOTAUTH = 1233242887, "the caller is not authorised";
    RXGK_BAD_TOKEN = 1233242888, "the token is not valid";
    RXGK_SEALED_INCON = 1233242889, "the sealed data is inconsistent";
    RXGK_DATA_LEN = 1233242890, "the data is too long";
    RXGK_BAD_QOP = 1233242891, "the protection asked for is not available";
}

errno! {
    EPERM = 1;
    ENOENT = 2;
    EIO = 5;
    E2BIG = 7;
    EAGAIN = 11;
    ENOMEM = 12;
    EACCES = 13;
    EBUSY = 16;
    EEXIST = 17;
    EXDEV = 18;
    ENODEV = 19;
    ENOTDIR = 20;
    EISDIR = 21;
    EINVAL = 22;
    EFBIG = 27;
    ENOSPC = 28;
    EROFS = 30;
    EMLINK = 31;
    ENAMETOOLONG = 36;
    ENOLCK = 37;
    ENOSYS = 38;
    ENOTEMPTY = 39;
    ELOOP = 40;
    ENODATA = 61;
    EBADMSG = 74;
    EOVERFLOW = 75;
    EOPNOTSUPP = 95;
    ECONNREFUSED = 111;
    ESTALE = 116;
    EDQUOT = 122;
    ENOMEDIUM = 123;
}

/// Codes with a second name.
impl AbortCode {
    /// The server is starting: [`AbortCode::VRESTARTING`] by Rx's name.
    pub const RX_RESTARTING: Self = Self::VRESTARTING;
    /// The volume is read-only: the volume package's name for [`AbortCode::EROFS`].
    pub const VREADONLY: Self = Self::EROFS;
}
