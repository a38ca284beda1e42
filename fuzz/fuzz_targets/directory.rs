//! Directory pages: every operation answers; a sound directory stays sound and keeps its names.

#![no_main]

use cellar_wire::dir::{Directory, Page, VnodeRef};
use cellar_wire::{Uniquifier, VnodeId};
use libfuzzer_sys::fuzz_target;

const TARGET: VnodeRef = VnodeRef {
    vnode: VnodeId(2),
    uniquifier: Uniquifier(2),
};

fuzz_target!(|data: &[u8]| {
    let mut pages: Vec<Page> = data.as_chunks().0.to_vec();
    if pages.is_empty() {
        let mut page = [0; 2048];
        page[..data.len()].copy_from_slice(data);
        pages.push(page);
    }
    let mut directory = Directory::new(pages);
    let sound = directory.check();
    let entries = directory.entries();
    let _ = directory.is_empty();
    let name = &data[..data.len().min(300)];
    let _ = directory.lookup(name);
    let _ = directory.set_parent(TARGET);
    let inserted = directory.insert(name, TARGET);
    if let (Ok(_), Ok(entries)) = (sound, entries) {
        directory.check().expect("a sound directory stays sound");
        if inserted.is_ok() {
            assert_eq!(directory.lookup(name), Ok(Some(TARGET)));
            directory.remove(name).expect("it was there");
        }
        for (name, _) in &entries {
            assert!(directory.lookup(name).is_ok_and(|found| found.is_some()));
        }
        for (name, target) in entries
            .iter()
            .filter(|(name, _)| name != b"." && name != b"..")
        {
            assert_eq!(directory.remove(name), Ok(*target));
        }
        assert_eq!(directory.is_empty(), Ok(true));
        directory.check().expect("a sound directory stays sound");
    } else {
        let _ = directory.remove(name);
    }
});
