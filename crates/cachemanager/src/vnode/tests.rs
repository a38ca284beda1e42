//! Tests of the order of answers about a vnode.

use std::sync::Arc;

use cellar_wire::abort::AbortCode;
use cellar_wire::ids::VolumeId;

use super::*;
use cellar_client::cell::CellName;
use cellar_client::mount_point::VolumeKind;

const USER: u32 = 1;

/// A file of volume 5 without a known status.
pub(crate) fn vnode() -> Vnode {
    with_fid(Fid::new(5, 2, 1))
}

/// A directory of volume 5 without a known status.
fn directory() -> Vnode {
    with_fid(Fid::new(5, 3, 1))
}

fn with_fid(fid: Fid) -> Vnode {
    let volume = Volume {
        cell: CellName::new("test.cell").expect("name"),
        name: "volume".to_owned(),
        kind: VolumeKind::ReadWrite,
        id: VolumeId(5),
    };
    let body = Body::in_memory(Arc::default());
    Vnode::new((0, fid), Arc::new(volume), body)
}

fn status(version: u64, length: u64, mode: u32) -> AfsFetchStatus {
    AfsFetchStatus {
        file_type: FileType::File,
        length,
        data_version: version,
        unix_mode: mode,
        ..AfsFetchStatus::failed(AbortCode(0))
    }
}

fn promise(asked: StatusRequest) -> Option<(Callback, StatusRequest)> {
    let callback = Callback {
        version: 1,
        expires_in_secs: 3600,
        callback_type: Callback::SHARED,
    };
    Some((callback, asked))
}

fn known(vnode: &Vnode) -> (u64, u64, u32, bool) {
    let Attributes { status, valid } = vnode.attributes().expect("known");
    let promised = !valid.is_zero();
    assert_eq!(vnode.body.lock().length(), status.length);
    (
        status.data_version,
        status.length,
        status.unix_mode,
        promised,
    )
}

#[test]
fn an_answer_from_before_our_own_change_does_not_undo_it() {
    let vnode = vnode();
    let early = StatusRequest::about(&vnode);
    let _nothing = vnode.apply_status(USER, &status(4, 10, 0o644), promise(early));
    let asked = StatusRequest::about(&vnode);
    // We store in between, and that answer arrives first.
    let _nothing = vnode.apply_status(USER, &status(5, 20, 0o644), None);
    let _nothing = vnode.apply_status(USER, &status(4, 10, 0o644), promise(asked));
    assert_eq!(known(&vnode), (5, 20, 0o644, true));
    // If the version is higher, the late answer is newer.
    let _nothing = vnode.apply_status(USER, &status(6, 30, 0o644), promise(asked));
    assert_eq!(known(&vnode), (6, 30, 0o644, true));
    // A change of the mode keeps the version, so it is unknown which of the two is newer.
    let asked = StatusRequest::about(&vnode);
    let _nothing = vnode.apply_status(USER, &status(6, 30, 0o600), None);
    let _nothing = vnode.apply_status(USER, &status(6, 30, 0o644), promise(asked));
    assert!(!known(&vnode).3);
}

#[test]
fn answers_to_our_own_changes_may_overtake_each_other() {
    let vnode = vnode();
    let _nothing = vnode.apply_status(USER, &status(5, 20, 0o644), None);
    let _nothing = vnode.apply_status(USER, &status(4, 10, 0o600), None);
    assert_eq!(known(&vnode), (5, 20, 0o644, false));
}

#[test]
fn a_replaced_directory_that_the_server_keeps_with_one_link_stays_removed() {
    let vnode = directory();
    let at = |links| AfsFetchStatus {
        file_type: FileType::Directory,
        link_count: links,
        ..status(4, 2_048, 0o755)
    };
    let asked = StatusRequest::about(&vnode);
    let _nothing = vnode.apply_status(USER, &at(2), promise(asked));
    vnode.directory_removed();
    // OpenAFS's servers answer so after a rename over an empty directory.
    let asked = StatusRequest::about(&vnode);
    let _nothing = vnode.apply_status(USER, &at(1), promise(asked));
    assert_eq!(vnode.attributes().expect("known").status.link_count, 0);
    // With two links it has a name again: a restored volume.
    let asked = StatusRequest::about(&vnode);
    let _nothing = vnode.apply_status(USER, &at(2), promise(asked));
    assert_eq!(vnode.attributes().expect("known").status.link_count, 2);
}
