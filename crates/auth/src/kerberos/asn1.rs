//! The records of RFC 4120, section 5, of which a ticket consists.

use der::asn1::{AnyRef, BitStringRef, GeneralizedTime, OctetStringRef};
use der::{
    DecodeValue, EncodeValue, FixedTag, Header, Length, Reader, Sequence, Tag, TagNumber, Writer,
};

/// `[APPLICATION 1]`: a ticket.
pub(super) const TICKET: TagNumber = TagNumber(1);
/// `[APPLICATION 3]`: the contents of its sealed part.
pub(super) const ENC_TICKET_PART: TagNumber = TagNumber(3);

/// A name or realm: a `GeneralString`. Kerberos uses its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KerberosString<'a>(pub(super) &'a [u8]);

impl FixedTag for KerberosString<'_> {
    const TAG: Tag = Tag::GeneralString;
}

impl<'a> DecodeValue<'a> for KerberosString<'a> {
    type Error = der::Error;

    fn decode_value<R: Reader<'a>>(reader: &mut R, header: Header) -> der::Result<Self> {
        reader.read_slice(header.length()).map(Self)
    }
}

impl EncodeValue for KerberosString<'_> {
    fn value_len(&self) -> der::Result<Length> {
        self.0.len().try_into()
    }

    fn encode_value(&self, writer: &mut impl Writer) -> der::Result<()> {
        writer.write(self.0)
    }
}

/// `PrincipalName`.
#[derive(Clone, Debug, Sequence)]
pub(super) struct PrincipalName<'a> {
    #[asn1(context_specific = "0", tag_mode = "EXPLICIT")]
    pub(super) name_type: i32,
    #[asn1(context_specific = "1", tag_mode = "EXPLICIT")]
    pub(super) name_string: Vec<KerberosString<'a>>,
}

/// `EncryptedData`.
#[derive(Clone, Debug, Sequence)]
pub(super) struct EncryptedData<'a> {
    #[asn1(context_specific = "0", tag_mode = "EXPLICIT")]
    pub(super) etype: i32,
    #[asn1(context_specific = "1", tag_mode = "EXPLICIT", optional = "true")]
    pub(super) kvno: Option<u32>,
    #[asn1(context_specific = "2", tag_mode = "EXPLICIT")]
    pub(super) cipher: &'a OctetStringRef,
}

/// `Ticket`, under its application tag.
#[derive(Clone, Debug, Sequence)]
pub(super) struct Ticket<'a> {
    #[asn1(context_specific = "0", tag_mode = "EXPLICIT")]
    pub(super) tkt_vno: u32,
    #[asn1(context_specific = "1", tag_mode = "EXPLICIT")]
    pub(super) realm: KerberosString<'a>,
    #[asn1(context_specific = "2", tag_mode = "EXPLICIT")]
    pub(super) sname: PrincipalName<'a>,
    #[asn1(context_specific = "3", tag_mode = "EXPLICIT")]
    pub(super) enc_part: EncryptedData<'a>,
}

/// `EncryptionKey`. It has no `Debug` because it is a secret.
#[derive(Clone, Sequence)]
pub(super) struct EncryptionKey<'a> {
    #[asn1(context_specific = "0", tag_mode = "EXPLICIT")]
    pub(super) keytype: i32,
    #[asn1(context_specific = "1", tag_mode = "EXPLICIT")]
    pub(super) keyvalue: &'a OctetStringRef,
}

/// `TransitedEncoding`.
#[derive(Clone, Debug, Sequence)]
pub(super) struct TransitedEncoding<'a> {
    #[asn1(context_specific = "0", tag_mode = "EXPLICIT")]
    pub(super) tr_type: i32,
    #[asn1(context_specific = "1", tag_mode = "EXPLICIT")]
    pub(super) contents: &'a OctetStringRef,
}

/// `EncTicketPart`, under its application tag.
#[derive(Clone, Sequence)]
pub(super) struct EncTicketPart<'a> {
    #[asn1(context_specific = "0", tag_mode = "EXPLICIT")]
    pub(super) flags: BitStringRef<'a>,
    #[asn1(context_specific = "1", tag_mode = "EXPLICIT")]
    pub(super) key: EncryptionKey<'a>,
    #[asn1(context_specific = "2", tag_mode = "EXPLICIT")]
    pub(super) crealm: KerberosString<'a>,
    #[asn1(context_specific = "3", tag_mode = "EXPLICIT")]
    pub(super) cname: PrincipalName<'a>,
    #[asn1(context_specific = "4", tag_mode = "EXPLICIT")]
    pub(super) transited: TransitedEncoding<'a>,
    #[asn1(context_specific = "5", tag_mode = "EXPLICIT")]
    pub(super) authtime: GeneralizedTime,
    #[asn1(context_specific = "6", tag_mode = "EXPLICIT", optional = "true")]
    pub(super) starttime: Option<GeneralizedTime>,
    #[asn1(context_specific = "7", tag_mode = "EXPLICIT")]
    pub(super) endtime: GeneralizedTime,
    #[asn1(context_specific = "8", tag_mode = "EXPLICIT", optional = "true")]
    pub(super) renew_till: Option<GeneralizedTime>,
    #[asn1(context_specific = "9", tag_mode = "EXPLICIT", optional = "true")]
    pub(super) caddr: Option<AnyRef<'a>>,
    #[asn1(context_specific = "10", tag_mode = "EXPLICIT", optional = "true")]
    pub(super) authorization_data: Option<AnyRef<'a>>,
}
