//! Tests of servers and their addresses.

use super::*;

#[test]
fn a_server_registers_its_addresses() {
    let cell = cell();
    let word = |index: u32| 0xff00_0000 | index;
    assert_eq!(cell.register(1, &[0, 0]), Err(AbortCode::VL_INDEXERANGE));
    assert_eq!(cell.register(0, &[A]), Err(AbortCode::VL_BADSERVER));
    assert_eq!(cell.register(1, &[A, A, 0, B]), Ok(()));
    assert_eq!(cell.addrs_u(VLADDR_UUID, 1), Ok((1, 1, vec![A, B])));
    assert_eq!(cell.addrs_u(VLADDR_IPADDR, B), Ok((1, 1, vec![A, B])));
    assert_eq!(cell.addrs_u(VLADDR_INDEX, 1), Ok((1, 1, vec![A, B])));
    assert_eq!(cell.register(1, &[A, B]), Ok(()));
    assert_eq!(
        cell.addrs_u(VLADDR_UUID, 1),
        Ok((1, 1, vec![A, B])),
        "nothing changed"
    );
    assert_eq!(cell.register(1, &[B]), Ok(()));
    assert_eq!(cell.addrs_u(VLADDR_UUID, 1), Ok((1, 2, vec![B])));
    for (mask, value, code) in [
        (VLADDR_UUID, 9, AbortCode::VL_NOENT),
        (VLADDR_IPADDR, A, AbortCode::VL_NOENT),
        (VLADDR_INDEX, 0, AbortCode::VL_INDEXERANGE),
        (VLADDR_INDEX, 255, AbortCode::VL_INDEXERANGE),
        (VLADDR_INDEX, 2, AbortCode::VL_NOENT),
        (VLADDR_INDEX | VLADDR_UUID, 1, AbortCode::VL_BADMASK),
        (0, 1, AbortCode::VL_BADMASK),
    ] {
        assert_eq!(cell.addrs_u(mask, value), Err(code), "{mask} {value}");
    }
    // A volume on servers that have never registered.
    let mut entry = volume("v", 10);
    entry.sites = List::from_iter_cut([site(A, 0, VLSF_RWVOL), site(B, 0, VLSF_ROVOL)]);
    cell.create(entry.clone()).unwrap();
    let reply = cell
        .ask(GetAddrs {
            handle: 0,
            spare2: 0,
        })
        .unwrap();
    assert_eq!(reply.blkaddr.into_vec(), [word(1), A]);
    let sites = cell.get_u("v").sites;
    assert_eq!(
        (sites[0].server, sites[0].flags),
        (AfsUuid::from_address(A), VLSF_RWVOL)
    );
    assert_eq!(
        (sites[1].server, sites[1].uniquifier),
        (AfsUuid([1; 16]), 2)
    );
    assert_eq!(sites[1].flags, VLSF_ROVOL | VLSF_UUID);
    // The server registers and keeps its number. Therefore the volume is still on it.
    assert_eq!(cell.register(2, &[A]), Ok(()));
    assert_eq!(cell.get_u("v").sites[0].server, AfsUuid([2; 16]));
    assert_eq!(
        cell.get("v"),
        Ok(entry),
        "forms without UUIDs use the first address"
    );
    cell.check();
}

#[test]
fn addresses_that_belong_to_several_servers_are_refused() {
    let cell = cell();
    cell.register(1, &[1, 2]).unwrap();
    cell.register(2, &[3, 4]).unwrap();
    assert_eq!(
        cell.register(1, &[1, 2, 3, 4]),
        Err(AbortCode::VL_MULTIPADDR),
        "covers 2"
    );
    assert_eq!(
        cell.register(3, &[1, 3]),
        Err(AbortCode::VL_MULTIPADDR),
        "touches both"
    );
    assert_eq!(cell.register(1, &[1, 3]), Ok(()), "takes one from 2");
    assert_eq!(cell.addrs_u(VLADDR_UUID, 1), Ok((1, 2, vec![1, 3])));
    assert_eq!(cell.addrs_u(VLADDR_UUID, 2), Ok((2, 2, vec![4])));
    assert_eq!(cell.register(3, &[4, 5]), Ok(()), "2 with a new identity");
    assert_eq!(cell.addrs_u(VLADDR_UUID, 2), Err(AbortCode::VL_NOENT));
    assert_eq!(cell.addrs_u(VLADDR_INDEX, 2), Ok((3, 3, vec![4, 5])));
    let many: Vec<u32> = (100..120).collect();
    assert_eq!(cell.register(4, &many), Ok(()));
    assert_eq!(cell.addrs_u(VLADDR_UUID, 4).unwrap().2, &many[..15]);
    cell.check();
}

#[test]
fn an_address_is_changed_or_removed() {
    let cell = cell();
    let change = |ip1, ip2| cell.ask(ChangeAddr { ip1, ip2 }).map(drop);
    cell.create(volume("v", 10)).unwrap();
    cell.register(1, &[0x0a00_0010, 0x0a00_0011]).unwrap();
    assert_eq!(change(A, 0xff00_0001), Err(AbortCode::VL_BADSERVER));
    assert_eq!(change(B, A), Err(AbortCode::VL_NOENT));
    assert_eq!(change(A, 0x0a00_0010), Err(AbortCode::VL_MULTIPADDR));
    assert_eq!(
        change(0x0a00_0010, B),
        Err(AbortCode::VL_NOENT),
        "multi-homed"
    );
    assert_eq!(change(A, B), Ok(()));
    assert_eq!(cell.get("v").unwrap().sites[0].server, B);
    assert_eq!(change(u32::MAX, A), Err(AbortCode::VL_NOENT));
    assert_eq!(
        change(u32::MAX, B),
        Err(AbortCode::VL_IDEXIST),
        "volumes have sites on the server"
    );
    assert_eq!(change(u32::MAX, 0x0a00_0011), Ok(()));
    assert_eq!(cell.addrs_u(VLADDR_UUID, 1), Err(AbortCode::VL_NOENT));
    cell.ask(DeleteEntry {
        volid: VolumeId(10),
        voltype: 0,
    })
    .unwrap();
    assert_eq!(change(u32::MAX, B), Ok(()));
    cell.check();
}

#[test]
fn there_are_at_most_255_servers() {
    let cell = cell();
    let on = |n: u32| {
        let mut entry = volume(&format!("v{n}"), 10 + 10 * n);
        entry.sites = List::from_iter_cut([site(A + n, 0, VLSF_RWVOL)]);
        cell.create(entry)
    };
    (0..255).for_each(|n| on(n).unwrap());
    assert_eq!(on(255), Err(AbortCode::VL_BADSERVER));
    assert_eq!(cell.register(1, &[1]), Err(AbortCode::VL_BADSERVER));
    assert_eq!(cell.register(1, &[A + 254]), Ok(()));
    assert_eq!(cell.addrs_u(VLADDR_UUID, 1), Ok((1, 1, vec![A + 254])));
    cell.check();
}
