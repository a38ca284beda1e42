//! Access lists: what is read as text or as 192 bytes is written and read the same.

#![no_main]

use cellar_wire::acl::text::AclText;
use cellar_wire::acl::{ACL_SIZE, AccessList, ByteOrder};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(list) = AclText::parse(data) {
        assert_eq!(AclText::parse(list.to_text().as_bytes()), Ok(list));
    }
    let mut bytes = [0; ACL_SIZE];
    let len = data.len().min(ACL_SIZE);
    bytes[..len].copy_from_slice(&data[..len]);
    for order in [ByteOrder::Network, ByteOrder::LittleEndian] {
        if let Ok(list) = AccessList::from_bytes(&bytes, order) {
            let again = AccessList::from_bytes(&list.to_bytes(), ByteOrder::Network);
            assert_eq!(again, Ok(list));
        }
    }
});
