//! A cache built by the test, in the format of MIT's library, and every kind of damage to it.

use super::*;
use crate::{DomainRealm, best};

fn string(out: &mut Vec<u8>, text: &[u8]) {
    out.extend(u32::try_from(text.len()).expect("short").to_be_bytes());
    out.extend(text);
}

fn principal(out: &mut Vec<u8>, text: &str) {
    let principal = KerberosPrincipal::parse(text).expect(text);
    out.extend(1u32.to_be_bytes());
    let count = u32::try_from(principal.components.len()).expect("few");
    out.extend(count.to_be_bytes());
    string(out, principal.realm.as_bytes());
    for component in &principal.components {
        string(out, component.as_bytes());
    }
}

fn ticket(out: &mut Vec<u8>, form: u8, server: &str, ends: u32) {
    principal(out, "alice@TEST.CELL");
    principal(out, server);
    for _ in form..=4 {
        out.extend(18u16.to_be_bytes());
    }
    string(out, &[7; 32]);
    for time in [1000, 0, ends, 0] {
        out.extend(u32::to_be_bytes(time));
    }
    out.push(0);
    out.extend(0u32.to_be_bytes());
    // One address, no authorization data.
    out.extend(1u32.to_be_bytes());
    out.extend(2u16.to_be_bytes());
    string(out, &[192, 0, 2, 1]);
    out.extend(0u32.to_be_bytes());
    string(out, server.as_bytes());
    string(out, b"");
}

fn cache(form: u8) -> Vec<u8> {
    let mut out = vec![5, form];
    if form == 4 {
        out.extend([0, 12, 0, 1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
    principal(&mut out, "alice@TEST.CELL");
    ticket(&mut out, form, "krbtgt/TEST.CELL@TEST.CELL", 5000);
    ticket(&mut out, form, "krb5_ccache_conf_data/x@X-CACHECONF:", 0);
    ticket(&mut out, form, "afs/test.cell@TEST.CELL", 4000);
    ticket(&mut out, form, "afs@TEST.CELL", 4500);
    ticket(&mut out, form, "afs/other.cell@TEST.CELL", 0);
    ticket(&mut out, form, "afs/other.cell@OTHER", 3000);
    out
}

#[test]
fn both_forms_are_read() {
    for form in [3, 4] {
        let read = CredentialCache::parse(&cache(form)).expect("a cache");
        assert_eq!(read.owner.to_string(), "alice@TEST.CELL");
        assert_eq!(read.tickets.len(), 4);
        let first = &read.tickets[0];
        assert_eq!(first.enctype, 18);
        assert_eq!(**first.session_key, [7; 32]);
        assert_eq!((first.begins, first.ends), (1000, 5000));
        assert_eq!(first.ticket, b"krbtgt/TEST.CELL@TEST.CELL");
        let best = |cell, now| {
            let found = best(&read.tickets, cell, now, &DomainRealm::default());
            found.map(|ticket| ticket.server.to_string())
        };
        assert_eq!(best("test.cell", 0).as_deref(), Some("afs@TEST.CELL"));
        assert_eq!(best("test.cell", 4500), None);
        assert_eq!(
            best("other.cell", 0).as_deref(),
            Some("afs/other.cell@OTHER")
        );
        assert_eq!(best("third.cell", 0), None);
        assert!(read.granting_ticket(4999).is_some() && read.granting_ticket(5000).is_none());
    }
}

#[test]
fn the_realm_counts_before_the_time() {
    let mut bytes = vec![5, 3];
    principal(&mut bytes, "alice@TEST.CELL");
    // A realm without relation to the cell; the realm named like the cell; the user's own realm.
    ticket(&mut bytes, 3, "afs/other.cell@ELSEWHERE", 9000);
    ticket(&mut bytes, 3, "afs/other.cell@OTHER.CELL", 8000);
    ticket(&mut bytes, 3, "afs/other.cell@TEST.CELL", 7000);
    let read = CredentialCache::parse(&bytes).expect("a cache");
    let best = |now| {
        let found = best(&read.tickets, "other.cell", now, &DomainRealm::default());
        found.map(|ticket| ticket.server.realm.as_str())
    };
    assert_eq!(best(6999), Some("TEST.CELL"));
    assert_eq!(best(7000), Some("OTHER.CELL"));
    assert_eq!(best(8000), Some("ELSEWHERE"), "told at a login, maybe");
    assert_eq!(best(9000), None);
}

#[test]
fn every_truncation_is_refused_or_a_shorter_cache() {
    let whole = cache(4);
    let tickets = CredentialCache::parse(&whole).expect("a cache").tickets;
    for length in 0..whole.len() {
        match CredentialCache::parse(&whole[..length]) {
            Ok(shorter) => assert!(shorter.tickets.len() < tickets.len(), "{length}"),
            Err(BadCache::NotACache) => assert!(length < 2),
            Err(error) => assert_eq!(error, BadCache::Damaged),
        }
    }
}

#[test]
fn absurd_counts_are_refused() {
    let whole = cache(4);
    for at in 0..whole.len() {
        let mut bad = whole.clone();
        bad[at] = 0xff;
        // It must not panic or allocate much; the result does not matter.
        let _ = CredentialCache::parse(&bad);
    }
    assert_eq!(CredentialCache::parse(&[5, 2]), Err(BadCache::Old(2)));
    assert_eq!(CredentialCache::parse(b"{}"), Err(BadCache::NotACache));
}

#[test]
fn tickets_are_taken_out_and_the_rest_stays() {
    let whole = cache(4);
    let of_cell = |ticket: &Ticket| ticket.server.afs_cell().as_deref() == Some("test.cell");
    let less = CredentialCache::without(&whole, of_cell).expect("a cache");
    let read = CredentialCache::parse(&less).expect("a cache");
    let servers: Vec<_> = read.tickets.iter().map(|t| t.server.to_string()).collect();
    assert_eq!(
        servers,
        ["krbtgt/TEST.CELL@TEST.CELL", "afs/other.cell@OTHER"]
    );
    // Entries that are not tickets stay too.
    assert!(less.windows(12).any(|bytes| bytes == b"X-CACHECONF:"));
    assert_eq!(
        **CredentialCache::without(&whole, |_| false).expect("same"),
        whole
    );
}
