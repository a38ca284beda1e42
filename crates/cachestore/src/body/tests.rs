//! Bodies of cached files, changed at random and by hand.

use bytes::Bytes;
use cellar_wire::abort::AbortCode;
use cellar_wire::rxafs::FileType;

use super::*;

fn status(version: u64, length: u64) -> AfsFetchStatus {
    AfsFetchStatus {
        file_type: FileType::File,
        length,
        data_version: version,
        ..AfsFetchStatus::failed(AbortCode(0))
    }
}

fn body(version: u64, bytes: &[u8]) -> Body {
    let mut body = Body::new(Backing::memory(), Arc::default());
    body.apply_status(&status(version, bytes.len() as u64));
    let whole = 0..bytes.len() as u64;
    let bytes = [Bytes::copy_from_slice(bytes)];
    body.fill(&status(version, whole.end), whole, &bytes)
        .expect("memory");
    body
}

/// A server, in so far as it takes stores. Source: afs-rpcs §5.5.
struct Server(Vec<u8>, u64);

impl Server {
    fn take(&mut self, body: &mut Body) -> usize {
        let mut calls = 0;
        while let Some(piece) = body.next_piece(STORE_BYTES) {
            self.apply(body, &piece);
            self.answer(body, &piece);
            calls += 1;
        }
        calls
    }

    /// It has taken that piece, and says so; as in `Vnode::stored`, its status is met, too.
    fn answer(&self, body: &mut Body, piece: &Piece) {
        assert!(!body.stored(piece, &self.status(), &[]));
        assert!(!body.apply_status(&self.status()));
    }

    fn apply(&mut self, body: &mut Body, piece: &Piece) {
        let bytes = body.read(piece.start, piece.end).expect("memory");
        self.0.truncate(piece.file_length as usize);
        if self.0.len() < piece.end as usize {
            self.0.resize(piece.end as usize, 0);
        }
        self.0[piece.start as usize..piece.end as usize].copy_from_slice(&bytes);
        self.1 += 1;
    }

    fn status(&self) -> AfsFetchStatus {
        status(self.1, self.0.len() as u64)
    }
}

const NOW: AfsTime = AfsTime(1);

#[test]
fn a_rewritten_file_is_one_call() {
    let mut server = Server(b"something old".to_vec(), 3);
    let mut body = body(3, &server.0);
    body.set_length(0, NOW).expect("cut");
    body.write(0, b"new", NOW).expect("write");
    assert_eq!(server.take(&mut body), 1);
    assert_eq!(server.0, b"new");
    assert!(!body.is_changed());
    assert_eq!(body.gaps(0, 3), []);
}

#[test]
fn truncated_and_extended_bytes_are_zero() {
    let mut server = Server(b"0123456789".to_vec(), 3);
    let mut body = body(3, &server.0);
    body.set_length(4, NOW).expect("cut");
    body.set_length(8, NOW).expect("extend");
    body.write(9, b"x", NOW).expect("write");
    server.take(&mut body);
    assert_eq!(server.0, b"0123\0\0\0\0\0x");
    body.set_length(12, NOW).expect("extend");
    server.take(&mut body);
    assert_eq!(server.0.len(), 12);
}

#[test]
fn random_changes_reach_the_server() {
    for seed in 1..=20 {
        random_changes(seed);
    }
}

fn random_changes(mut seed: u64) {
    let mut server = Server(vec![7; 100], 3);
    let mut body = body(3, &server.0);
    let mut model = server.0.clone();
    let mut next = |limit: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % limit
    };
    // A store that is under way, and whether the server has taken it.
    let mut under_way: Option<(Piece, bool)> = None;
    for round in 0..10_000u32 {
        match next(12) {
            0 | 5 | 6 => {
                let length = next(200);
                body.set_length(length, NOW).expect("length");
                model.resize(length as usize, 0);
            }
            1 => {
                if let Some((piece, taken)) = under_way.take() {
                    if !taken {
                        server.apply(&mut body, &piece);
                    }
                    server.answer(&mut body, &piece);
                }
                server.take(&mut body);
                assert_eq!(server.0, model, "round {round}");
            }
            2 | 7 | 8 if under_way.is_none() => {
                under_way = body.next_piece(STORE_BYTES).map(|piece| {
                    let taken = next(2) == 0;
                    if taken {
                        server.apply(&mut body, &piece);
                    }
                    (piece, taken)
                });
            }
            // It is answered, or failed before the server had it.
            2 | 3 | 7 | 8 | 9 => match under_way.take() {
                Some((piece, true)) => server.answer(&mut body, &piece),
                Some((piece, false)) => assert!(!body.not_stored(&piece)),
                None => {}
            },
            _ => {
                let (at, length) = (next(200) as usize, 1 + next(30) as usize);
                let bytes = vec![round as u8; length];
                body.write(at as u64, &bytes, NOW).expect("write");
                if model.len() < at + length {
                    model.resize(at + length, 0);
                }
                model[at..at + length].copy_from_slice(&bytes);
            }
        }
        assert_eq!(body.length(), model.len() as u64);
        assert_eq!(body.gaps(0, 1000), [], "round {round}");
        assert_eq!(body.read(0, body.length()).expect("read"), model);
    }
}

#[test]
fn a_cut_while_an_extension_is_stored_is_stored_after_it() {
    let mut server = Server(vec![7; 10], 3);
    let mut body = body(3, &server.0);
    body.set_length(20, NOW).expect("extend");
    let piece = body.next_piece(STORE_BYTES).expect("a piece");
    body.set_length(15, NOW).expect("cut");
    server.apply(&mut body, &piece);
    assert!(!body.stored(&piece, &server.status(), &[]));
    server.take(&mut body);
    assert_eq!((server.0.len(), body.length()), (15, 15));
}

/// Found by `mount-fsx-hour`.
#[test]
fn a_cut_of_what_was_cut_while_a_cut_was_stored_is_the_one_that_counts() {
    let mut server = Server(vec![7; 10], 3);
    let mut body = body(3, &server.0);
    body.set_length(5, NOW).expect("cut");
    let piece = body.next_piece(STORE_BYTES).expect("a piece");
    body.set_length(20, NOW).expect("extend");
    body.set_length(15, NOW).expect("cut");
    server.apply(&mut body, &piece);
    server.answer(&mut body, &piece);
    // Beyond what the server has, and shorter than what it is to be cut to.
    body.set_length(12, NOW).expect("cut");
    server.take(&mut body);
    assert_eq!(server.0, b"\x07\x07\x07\x07\x07\0\0\0\0\0\0\0");
    assert_eq!(body.length(), 12);
}

#[test]
fn stores_of_others_during_a_failed_store_are_seen() {
    let mut body = body(3, b"0123456789");
    body.write(2, b"ab", NOW).expect("write");
    let piece = body.next_piece(STORE_BYTES).expect("a piece");
    assert!(!body.apply_status(&status(4, 10)), "it may be our own");
    assert!(body.not_stored(&piece), "it was not");
    assert_eq!(body.gaps(0, 10), [(0, 2), (4, 10)]);
}

#[test]
fn stores_of_others_behind_ours_are_seen_at_its_answer() {
    let mut body = body(3, b"0123456789");
    body.write(2, b"ab", NOW).expect("write");
    let piece = body.next_piece(STORE_BYTES).expect("a piece");
    body.apply_status(&status(5, 3));
    assert!(body.stored(&piece, &status(4, 10), &[]));
    assert_eq!(
        body.next_piece(STORE_BYTES),
        None,
        "what they cut stays cut"
    );
    assert_eq!((body.length(), body.gaps(0, 10)), (3, vec![(0, 3)]));
}

#[test]
fn bytes_that_the_server_lacks_are_zero() {
    let mut body = body(3, &[7; 100]);
    body.write(90, b"0123456789", NOW).expect("write");
    assert!(body.apply_status(&status(4, 50)));
    let filled = body.fill(&status(4, 50), 0..90, &[Bytes::from(vec![8; 50])]);
    assert!(filled.expect("memory"));
    assert_eq!(body.gaps(0, 100), []);
    let bytes = body.read(40, 100).expect("read");
    assert_eq!(bytes, [&[8; 10][..], &[0; 40], b"0123456789"].concat());
}

#[test]
fn zeros_behind_a_cut_are_ours() {
    let mut body = body(3, b"0123456789");
    body.set_length(2, NOW).expect("cut");
    body.set_length(8, NOW).expect("extend");
    // There is to be room: the server still has something else there.
    body.forget_clean();
    assert_eq!(body.gaps(0, 8), [(0, 2)]);
    let piece = body.next_piece(STORE_BYTES).expect("a piece");
    body.forget_clean();
    assert_eq!(body.gaps(0, 8), [(0, 2)]);
    assert!(!body.stored(&piece, &status(4, 2), &[]));
    assert_eq!(body.gaps(0, 8), [(0, 2)]);
    assert_eq!(body.read(2, 8).expect("read"), [0; 6]);
}

#[test]
fn a_newer_version_leaves_only_our_own() {
    let mut body = body(3, b"0123456789");
    body.write(2, b"ab", NOW).expect("write");
    assert!(body.apply_status(&status(4, 10)));
    assert_eq!(body.gaps(0, 10), [(0, 2), (4, 10)]);
    assert_eq!(body.read(2, 4).expect("read"), b"ab");
    assert!(!body.apply_status(&status(4, 10)));
}

#[test]
fn a_store_beside_another_clients_is_noticed() {
    let mut body = body(3, b"0123456789");
    body.write(2, b"ab", NOW).expect("write");
    let piece = body.next_piece(STORE_BYTES).expect("a piece");
    body.write(8, b"z", NOW).expect("meanwhile");
    assert!(body.stored(&piece, &status(5, 10), &[]));
    assert_eq!(body.gaps(0, 10), [(0, 8), (9, 10)]);
    assert!(body.is_changed());
}

#[test]
fn attributes_that_did_not_come_with_the_bytes_are_left_to_be_stored() {
    let mut body = body(3, b"old");
    body.write(0, b"new", NOW).expect("write");
    let set = AfsStoreStatus {
        client_mod_time: Some(AfsTime(7)),
        unix_mode: Some(0o600),
        ..AfsStoreStatus::default()
    };
    body.set_attributes(&set, NOW);
    let piece = body.next_piece(STORE_BYTES).expect("bytes");
    assert_eq!((piece.set, piece.modified), (set, Some(AfsTime(7))));
    // As after a store at the devices, which takes the time and no mode.
    let shown = AfsFetchStatus {
        unix_mode: 0o644,
        client_mod_time: AfsTime(7),
        ..status(4, 3)
    };
    assert!(!body.stored(&piece, &shown, &[]));
    body.attributes_stored(&piece.set, Some(&shown));
    assert_eq!(body.with_local_changes(shown).unix_mode, 0o600);
    assert_eq!(body.next_piece(STORE_BYTES), None);
    let left = AfsStoreStatus {
        client_mod_time: None,
        ..set
    };
    assert!(body.is_changed());
    assert_eq!(body.unstored_attributes(), left);
}
