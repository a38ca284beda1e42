//! Writing dumps: items in the order in which OpenAFS writes their attributes.

use bytes::{BufMut, BytesMut};
use cellar_xdr::{Encode, Encoder};

use super::{
    BEGIN_MAGIC, DATES_MAX, DumpHeader, END_MAGIC, InObjects, OBJECTS_FORM, TAG_CRITICAL, TAG_DUMP,
    TAG_END, TAG_VNODE, TAG_VOLUME, VERSION, VnodeRecord, VolumeHeader,
};

fn word(out: &mut BytesMut, tag: u8, value: u32) {
    out.put_u8(tag);
    out.put_u32(value);
}

fn half(out: &mut BytesMut, tag: u8, value: u16) {
    out.put_u8(tag);
    out.put_u16(value);
}

fn byte(out: &mut BytesMut, tag: u8, value: u8) {
    out.put_u8(tag);
    out.put_u8(value);
}

/// `text` has no NUL, by its type.
fn string(out: &mut BytesMut, tag: u8, text: &[u8]) {
    out.put_u8(tag);
    out.extend_from_slice(text);
    out.put_u8(0);
}

/// Appends the dump's head. Of more than 50 pairs of dates the first 50 are written.
pub fn dump_header(out: &mut BytesMut, header: &DumpHeader) {
    out.put_u8(TAG_DUMP);
    out.put_u32(BEGIN_MAGIC);
    out.put_u32(VERSION);
    word(out, b'v', header.volume.0);
    string(out, b'n', &header.name);
    let dates = header.dates.get(..DATES_MAX).unwrap_or(&header.dates);
    half(out, b't', 2 * dates.len() as u16);
    for (from, to) in dates {
        out.put_u32(from.0);
        out.put_u32(to.0);
    }
}

/// Appends the volume's head.
pub fn volume_header(out: &mut BytesMut, header: &VolumeHeader) {
    out.put_u8(TAG_VOLUME);
    word(out, b'i', header.volume.0);
    word(out, b'v', header.version);
    string(out, b'n', &header.name);
    byte(out, b's', header.in_service.into());
    byte(out, b'b', header.blessed.into());
    word(out, b'u', header.uniquifier);
    byte(out, b't', header.volume_type);
    word(out, b'p', header.parent.0);
    word(out, b'c', header.clone.0);
    word(out, b'q', header.max_quota);
    word(out, b'm', header.min_quota);
    word(out, b'd', header.disk_used);
    word(out, b'f', header.file_count);
    word(out, b'a', header.account);
    word(out, b'o', header.owner);
    word(out, b'C', header.creation_date.0);
    word(out, b'A', header.access_date.0);
    word(out, b'U', header.update_date.0);
    word(out, b'E', header.expiration_date.0);
    word(out, b'B', header.backup_date.0);
    string(out, b'O', &header.offline_message);
    string(out, b'M', &header.message_of_the_day);
    half(out, b'W', header.week_use.len() as u16);
    for uses in header.week_use {
        out.put_u32(uses);
    }
    word(out, b'D', header.day_use_date.0);
    word(out, b'Z', header.day_use);
    if header.policy != 0 {
        word(out, b'y', header.policy);
    }
}

/// Appends a vnode's record. If it has a data length, exactly that many bytes must follow.
pub fn vnode(out: &mut BytesMut, record: &VnodeRecord) {
    word(out, TAG_VNODE, record.vnode.0);
    out.put_u32(record.uniquifier.0);
    let Some(attributes) = &record.attributes else {
        return;
    };
    byte(out, b't', attributes.file_type);
    half(out, b'l', attributes.link_count);
    word(out, b'v', attributes.data_version);
    word(out, b'm', attributes.mod_time.0);
    word(out, b'a', attributes.author.0 as u32);
    word(out, b'o', attributes.owner.0 as u32);
    if attributes.group.0 != 0 {
        word(out, b'g', attributes.group.0 as u32);
    }
    half(out, b'b', attributes.mode);
    word(out, b'p', attributes.parent.0);
    word(out, b's', attributes.server_mod_time.0);
    if let Some(access_list) = &attributes.access_list {
        out.put_u8(b'A');
        out.extend_from_slice(&access_list[..]);
    }
    if attributes.policy != 0 {
        word(out, b'd', attributes.policy);
    }
    if let Some(objects) = &attributes.objects {
        in_objects(out, objects);
    }
    match attributes
        .data_length
        .map(|length| (length, u32::try_from(length)))
    {
        None => {}
        Some((_, Ok(short))) => word(out, b'f', short),
        Some((long, Err(_))) => {
            out.put_u8(b'h');
            out.put_u64(long);
        }
    }
}

/// A critical attribute of any length.
fn in_objects(out: &mut BytesMut, objects: &InObjects) {
    let mut value = BytesMut::new();
    value.put_u32(OBJECTS_FORM);
    objects.encode(&mut Encoder::new(&mut value));
    out.put_u8(TAG_CRITICAL);
    out.put_u8(b'O');
    // The length, in four bytes.
    out.put_u8(0x84);
    out.put_u32(value.len() as u32);
    out.extend_from_slice(&value);
}

/// Appends the end.
pub fn end(out: &mut BytesMut) {
    word(out, TAG_END, END_MAGIC);
}
