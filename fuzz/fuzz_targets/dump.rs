//! Volume dumps: what is read is written and read the same, in pieces of any size.

#![no_main]

use bytes::BytesMut;
use cellar_wire::dump::{DumpError, Item, Reader, write};
use libfuzzer_sys::fuzz_target;

fn read(bytes: &[u8], piece: usize) -> Result<(Vec<Item>, BytesMut), DumpError> {
    let (mut reader, mut items, mut out) = (Reader::new(), Vec::new(), BytesMut::new());
    for piece in bytes.chunks(piece) {
        reader.feed(piece);
        while let Some(item) = reader.next_item()? {
            match &item {
                Item::Dump(header) => write::dump_header(&mut out, header),
                Item::Volume(header) => write::volume_header(&mut out, header),
                Item::Vnode(record) => write::vnode(&mut out, record),
                Item::Data(bytes) => out.extend_from_slice(bytes),
                Item::End => write::end(&mut out),
            }
            if !matches!(item, Item::Data(_)) {
                items.push(item);
            }
        }
    }
    reader.finish().map(|()| (items, out))
}

fuzz_target!(|data: &[u8]| {
    let whole = read(data, usize::MAX);
    let pieces = read(data, 97);
    assert_eq!(whole.is_ok(), pieces.is_ok());
    if let (Ok((items, written)), Ok((same, _))) = (whole, pieces) {
        assert_eq!(items, same);
        let again = read(&written, usize::MAX).expect("our own dump");
        assert_eq!(again, (items, written));
    }
});
