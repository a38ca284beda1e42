//! No client sees a change that the next start may lose. A data version that was seen and then lost
//! would later name other bytes. A cache that trusts it would keep bytes that never existed.

use crate::common::{World, at, new};
use cellar_volume::disk::Fault;

#[test]
fn changes_missing_in_the_journal_are_never_durable() {
    let world = World::new();
    let volume = world.volume();
    let root = volume.root();
    let created = volume.create_file(root, b"kept", &new(), at(2)).unwrap();
    created.durable.wait().unwrap();
    let kept = created.outcome.status.fid;
    volume.last_change(kept.vnode).wait().unwrap();
    volume.last_change(root.vnode).wait().unwrap();

    world.disk.set_fault(Fault::Dead(1));
    let lost = volume.create_file(root, b"lost", &new(), at(3)).unwrap();
    lost.durable.wait().unwrap_err();
    // The directory shows the name; a caller that would answer with it gets the failure instead.
    volume.last_change(root.vnode).wait().unwrap_err();
    volume
        .last_change(lost.outcome.status.fid.vnode)
        .wait()
        .unwrap_err();
    volume.last_change(kept.vnode).wait().unwrap();
}
