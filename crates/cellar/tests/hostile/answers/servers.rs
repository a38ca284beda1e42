//! Requests that cannot be, to the databases, the volume server and the overseer.

use super::*;

pub(super) fn databases(cases: &mut Cases) {
    let mut locations = |what: &str, code, request| cases.add(&vl::PACKAGE, 3, what, code, request);
    locations(
        "GetEntryByNameU of none",
        VL_NOENT,
        Words::opcode(527).text(b"no.such.volume"),
    );
    locations(
        "GetEntryByNameU, empty",
        VL_BADNAME,
        Words::opcode(527).text(b""),
    );
    locations(
        "GetEntryByNameU with a slash",
        VL_BADNAME,
        Words::opcode(527).text(b"a/b"),
    );
    locations(
        "GetEntryByNameU with a NUL",
        VL_BADNAME,
        Words::opcode(527).text(b"a\0b"),
    );
    locations(
        "GetEntryByNameU of 66 bytes",
        SS_UNMARSHAL,
        Words::opcode(527).text(&[b'x'; 66]),
    );
    locations(
        "GetEntryByIDN of 0",
        VL_NOENT,
        Words::opcode(518).words([0, 0]),
    );
    locations(
        "GetEntryByIDN of type 99",
        VL_BADVOLTYPE,
        Words::opcode(518).words([1, 99]),
    );
    locations(
        "GetNewVolumeId by anybody",
        VL_PERM,
        Words::opcode(505).word(1),
    );
    locations(
        "DeleteEntry by anybody",
        VL_PERM,
        Words::opcode(502).words([1, 0]),
    );
    locations(
        "SetLock by anybody",
        VL_PERM,
        Words::opcode(508).words([1, 0, 1]),
    );
    locations(
        "ReleaseLock by anybody",
        VL_PERM,
        Words::opcode(509).words([1, 0, 0]),
    );
    locations(
        "ChangeAddr by anybody",
        VL_PERM,
        Words::opcode(516).words([1, 2]),
    );
    locations(
        "RegisterAddrs by anybody",
        VL_PERM,
        Words::opcode(532)
            .words([0; 11])
            .word(0)
            .word(1)
            .word(0x7f00_0001),
    );
    locations(
        "RegisterAddrs of 501",
        SS_UNMARSHAL,
        (0..501).fold(
            Words::opcode(532).words([0; 11]).word(0).word(501),
            |w, _| w.word(1),
        ),
    );
    locations(
        "GetAddrsU with mask 0x80",
        VL_BADMASK,
        Words::opcode(533).words([0x80, 0, 0, 0]).words([0; 11]),
    );
    locations(
        "GetAddrsU of none",
        VL_NOENT,
        Words::opcode(533)
            .words([1, 0x0102_0304, 0, 0])
            .words([0; 11]),
    );
    locations("ListEntryN from -1", OK, Words::opcode(521).word(u32::MAX));
    locations(
        "ListEntryN from 2^31 - 1",
        OK,
        Words::opcode(521).word(0x7fff_ffff),
    );
    let mut users = |what: &str, code, request| cases.add(&pr::PACKAGE, 2, what, code, request);
    users(
        "ListEntry of none",
        PRNOENT,
        Words::opcode(512).word(0x0fff_ffff),
    );
    users("ListEntry of 0", PRNOENT, Words::opcode(512).word(0));
    users(
        "GetCPS of none",
        PRNOENT,
        Words::opcode(508).word(0x0fff_ffff),
    );
    users(
        "NewEntry by anybody",
        PRPERM,
        Words::opcode(509).text(b"evil").words([0, 0]),
    );
    users(
        "INewEntry by anybody",
        PRPERM,
        Words::opcode(500).text(b"evil").words([7, 0]),
    );
    users(
        "Delete by anybody",
        PRPERM,
        Words::opcode(506).word(-204i32 as u32),
    );
    users(
        "AddToGroup by anybody",
        PRPERM,
        Words::opcode(503).words([32766, -204i32 as u32]),
    );
    users(
        "SetMax by anybody",
        PRPERM,
        Words::opcode(511).words([5, 0]),
    );
    users(
        "NewEntry of 65 bytes",
        SS_UNMARSHAL,
        Words::opcode(509).text(&[b'x'; 65]).words([0, 0]),
    );
    users(
        "NameToID of 500,001",
        SS_UNMARSHAL,
        Words::opcode(504).word(500_001),
    );
    users(
        "NameToID of 2^32 - 1",
        SS_UNMARSHAL,
        Words::opcode(504).word(u32::MAX),
    );
    users(
        "IDToName of more than it sends",
        SS_UNMARSHAL,
        Words::opcode(505).word(400_000).word(1),
    );
    users(
        "ListEntries by anybody",
        PRPERM,
        Words::opcode(521).words([0, 0]),
    );
    for (offset, port) in [(2, "users"), (3, "locations")] {
        cases.add(
            &vote::PACKAGE,
            offset,
            format!("VOTE of no opcode, {port}"),
            OPCODE,
            Words::opcode(9_999),
        );
        let begin = Words::opcode(20_000).words([1, 1]);
        cases.add(
            &disk::PACKAGE,
            offset,
            format!("DISK_Begin by anybody, {port}"),
            DISK_REFUSED,
            begin,
        );
        let clear = Words::opcode(9).word(u32::MAX);
        cases.add(
            &rxstats::PACKAGE,
            offset,
            format!("clearing statistics by anybody, {port}"),
            RXSTATS_REFUSED,
            clear,
        );
    }
}

/// USYNC: there is no other site that could ask.
const DISK_REFUSED: i32 = 5381;
const RXSTATS_REFUSED: i32 = EPERM;

pub(super) fn volumes_and_overseer(cases: &mut Cases, objects: &Objects) {
    let volume = objects.file.volume.0;
    let mut volumes =
        |what: &str, code, request| cases.add(&afsvol::PACKAGE, 5, what, code, request);
    volumes(
        "CreateVolume by anybody",
        VOLSERBAD_ACCESS,
        Words::opcode(100).word(0).text(b"evil").words([0, 0, 0]),
    );
    volumes(
        "CreateVolume of 33 bytes",
        SS_UNMARSHAL,
        Words::opcode(100)
            .word(0)
            .text(&[b'x'; 33])
            .words([0, 0, 0]),
    );
    volumes(
        "DeleteVolume by anybody",
        VOLSERBAD_ACCESS,
        Words::opcode(101).word(1),
    );
    volumes(
        "NukeVolume by anybody",
        VOLSERBAD_ACCESS,
        Words::opcode(122).words([0, volume]),
    );
    volumes(
        "TransCreate by anybody",
        VOLSERBAD_ACCESS,
        Words::opcode(108).words([volume, 0, 1]),
    );
    volumes(
        // Dumps come with a later release.
        "Dump by anybody",
        OPCODE,
        Words::opcode(109).words([1, 0]),
    );
    volumes(
        "SetFlags by anybody",
        VOLSERBAD_ACCESS,
        Words::opcode(106).words([1, 1]),
    );
    volumes("GetFlags of none", ENOENT, Words::opcode(107).word(77));
    volumes("GetName of none", ENOENT, Words::opcode(112).word(77));
    volumes("GetStatus of none", ENOENT, Words::opcode(113).word(77));
    volumes(
        "PartitionInfo of 4097 bytes",
        SS_UNMARSHAL,
        Words::opcode(119).text(&[b'/'; 4097]),
    );
    volumes(
        "PartitionInfo of ../..",
        VOLSER_PARTITION,
        Words::opcode(119).text(b"../.."),
    );
    volumes(
        "ListVolumes of partition 999",
        VOLSER_PARTITION,
        Words::opcode(116).words([999, 1]),
    );
    volumes(
        "ListOneVolume of none",
        ENODEV,
        Words::opcode(121).words([0, 1]),
    );
    let mut overseer =
        |what: &str, code, request| cases.add(&bozo::PACKAGE, 7, what, code, request);
    overseer(
        "GetStatus of none",
        BZNOENT,
        Words::opcode(83).text(b"nothing"),
    );
    overseer(
        "GetInstanceInfo of none",
        BZNOENT,
        Words::opcode(85).text(b"../../etc"),
    );
    overseer(
        "EnumerateInstance of -1",
        BZDOM,
        Words::opcode(84).word(u32::MAX),
    );
    overseer(
        "EnumerateInstance of 9999",
        BZDOM,
        Words::opcode(84).word(9999),
    );
    overseer("ShutdownAll by anybody", BZACCESS, Words::opcode(99));
    overseer(
        "CreateBnode by anybody",
        BZACCESS,
        (0..7).fold(Words::opcode(80), |w, _| w.text(b"simple")),
    );
    overseer(
        "Exec by anybody",
        BZACCESS,
        Words::opcode(108).text(b"/bin/sh"),
    );
    overseer(
        "GetLog by anybody",
        BZACCESS,
        Words::opcode(112).text(b"../../etc/passwd"),
    );
    overseer(
        "SetNoAuthFlag by anybody",
        BZACCESS,
        Words::opcode(102).word(1),
    );
    overseer(
        "AddSUser by anybody",
        BZACCESS,
        Words::opcode(87).text(b"evil"),
    );
    overseer(
        "AddSUser of 257 bytes",
        BZACCESS,
        Words::opcode(87).text(&[b'x'; 257]),
    );
}

const VOLSER_PARTITION: i32 = 1_492_325_125;
const ENODEV: i32 = 19;
