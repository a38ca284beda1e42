//! Tests of listings and counters.

use super::*;

#[test]
fn entries_are_listed_one_after_the_other() {
    let cell = cell();
    for n in 0..5 {
        cell.create(volume(&format!("v{n}"), 10 + 10 * n)).unwrap();
    }
    cell.ask(DeleteEntry {
        volid: VolumeId(20),
        voltype: 0,
    })
    .unwrap();
    let (mut names, mut previous_index) = (Vec::new(), 0);
    loop {
        let reply = cell.ask(ListEntryN { previous_index }).unwrap();
        let old = cell.ask(ListEntry { previous_index }).unwrap();
        assert_eq!(
            (old.next_index, old.entry),
            (reply.next_index, reply.entry.to_old())
        );
        previous_index = reply.next_index;
        if previous_index == 0 {
            break;
        }
        assert_eq!(reply.count, 4);
        names.push(reply.entry.name.to_string());
    }
    assert_eq!(names, ["v0", "v2", "v3", "v4"]);
    let odd = cell.ask(ListEntryN { previous_index: -7 }).unwrap();
    assert_eq!(odd.entry.name.to_string(), "v0");
}

#[test]
fn listings_choose_by_server_partition_flags_and_name() {
    let cell = cell();
    cell.create(volume("root.afs", 10)).unwrap();
    let mut entry = volume("root.cell", 20);
    entry.sites = List::from_iter_cut([
        site(B, 1, VLSF_RWVOL),
        site(B, 1, VLSF_ROVOL),
        site(A, 2, VLSF_ROVOL),
    ]);
    entry.flags = VLF_RWEXISTS | VLF_ROEXISTS;
    cell.create(entry).unwrap();
    let mut entry = volume("user.x", 30);
    entry.flags = VLF_BACKEXISTS;
    cell.create(entry).unwrap();
    let all = VldbListByAttributes::default();
    let rw = |index| VLSF_RWVOL << 16 | index;
    let ro = |index| VLSF_ROVOL << 16 | index;
    let backup = VLSF_BACKVOL << 16;
    let expect = |found: Result<Vec<(String, u32)>, AbortCode>, expected: &[(&str, u32)]| {
        let found = found.unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|(name, index)| (&name[..], *index))
            .collect();
        assert_eq!(found, expected);
    };
    let every = [
        ("root.afs", rw(0)),
        ("root.cell", rw(0)),
        ("user.x", backup),
    ];
    expect(cell.list(ANYONE, all, ".*"), &every);
    expect(cell.list(ANYONE, all, ""), &every);
    assert_eq!(cell.list(ANYONE, all, "root.*"), Err(AbortCode::VL_PERM));
    expect(cell.list(ADMIN, all, "root\\..*"), &every[..2]);
    expect(
        cell.list(ADMIN, all, ".*\\.readonly"),
        &[("root.cell", ro(2))],
    );
    expect(cell.list(ADMIN, all, "user.*backup"), &[("user.x", backup)]);
    expect(cell.list(ADMIN, all, "oot"), &[]);
    assert_eq!(cell.list(ADMIN, all, "[a"), Err(AbortCode::VL_BADNAME));
    let by = |mask, server, partition, flag| VldbListByAttributes {
        mask,
        server,
        partition,
        flag,
        ..all
    };
    let on = by(VLLIST_SERVER, A, 0, 0);
    expect(
        cell.list(ANYONE, on, ""),
        &[every[0], ("root.cell", ro(2)), every[2]],
    );
    assert_eq!(cell.gather(on), ["root.afs", "root.cell", "user.x"]);
    let on = by(VLLIST_SERVER | VLLIST_PARTITION, B, 1, 0);
    expect(cell.list(ANYONE, on, ""), &[every[1]]);
    assert_eq!(cell.gather(on), ["root.cell"]);
    let on = by(VLLIST_PARTITION, 0, 2, 0);
    expect(cell.list(ANYONE, on, ""), &[("root.cell", ro(2))]);
    let flagged = by(VLLIST_FLAG, 0, 0, VLF_BACKEXISTS);
    expect(cell.list(ANYONE, flagged, ""), &[every[2]]);
    assert_eq!(cell.gather(flagged), ["user.x"]);
    let unknown = by(VLLIST_SERVER, 0x0a00_00ff, 0, 0);
    expect(cell.list(ANYONE, unknown, ""), &[]);
    assert!(cell.gather(unknown).is_empty());
    let id = |id| VldbListByAttributes {
        mask: VLLIST_VOLUMEID,
        volumeid: VolumeId(id),
        ..all
    };
    expect(cell.list(ANYONE, id(21), ""), &[("root.cell", 0)]);
    assert_eq!(cell.gather(id(21)), ["root.cell"]);
    assert_eq!(cell.list(ANYONE, id(99), ""), Err(AbortCode::VL_NOENT));
    assert!(cell.vl.gather(&id(99)).is_err());
}

#[test]
fn a_name_of_full_length_is_listed_and_matched() {
    let cell = cell();
    let name = "n".repeat(64);
    let mut entry = volume(&name, 10);
    entry.sites = List::from_iter_cut([site(A, 0, VLSF_ROVOL)]);
    cell.create(entry).unwrap();
    let all = VldbListByAttributes::default();
    assert_eq!(cell.list(ADMIN, all, "n*\\.readonly").unwrap().len(), 1);
}

#[test]
fn long_listings_come_in_pages() {
    let cell = cell();
    let bulk = |transaction: &mut cellar_celldb::Transaction<'_>| {
        let mut tables = tables::Tables(transaction);
        let server = tables.server_for(A)?;
        for n in 0..1250 {
            let new = volume(&format!("v{n}"), 10 + 10 * n);
            let places = [entry::EntrySite {
                server,
                partition: 0,
                flags: VLSF_RWVOL as u8,
            }];
            tables.insert(&entry::Entry {
                number: n + 1,
                name: new.name,
                ids: new.volume_ids,
                clone_id: new.clone_id,
                flags: new.flags,
                lock_time: AfsTime(0),
                lock_id: 0,
                places: places.into(),
            })?;
        }
        Ok(())
    };
    cell.vl.replica.write(bulk).unwrap();
    let all = VldbListByAttributes::default();
    assert_eq!(cell.list(ANYONE, all, "").unwrap().len(), 1250);
    assert_eq!(
        cell.list(ADMIN, all, "v1.*").unwrap().len(),
        1 + 10 + 100 + 250
    );
    assert_eq!(cell.gather(all).len(), 1250);
    cell.check();
}

#[test]
fn statistics_count_calls_and_refusals() {
    let cell = cell();
    cell.create(volume("v", 10)).unwrap();
    cell.get("v").unwrap();
    cell.get("w").unwrap_err();
    cell.ask(ProbeServer {}).unwrap();
    let reply = cell.ask(GetStats {}).unwrap();
    let index = |opcode: u32| (opcode - 501) as usize;
    assert_eq!(reply.stats.start_time, AfsTime(1000));
    assert_eq!(reply.stats.requests[index(GetEntryByNameN::OPCODE)], 2);
    assert_eq!(reply.stats.aborts[index(GetEntryByNameN::OPCODE)], 1);
    assert_eq!(reply.stats.requests[index(ProbeServer::OPCODE)], 1);
    assert_eq!(reply.vital_header.max_volume_id, VolumeId(0x2000_0000));
    assert_eq!(reply.vital_header.total_entries, [1, 1, 1]);
    assert_eq!(cell.ask(GetCapabilities {}).unwrap().capabilities.len(), 1);
}

#[test]
fn a_cell_may_keep_its_listings_to_superusers() {
    let cell = cell();
    cell.create(volume("a", 100)).unwrap();
    let rules = Rules {
        restricted_query: true,
    };
    let vl = cell.vl.with_rules(rules);
    let first = ListEntryN { previous_index: 0 };
    let nobody = Identity::ANONYMOUS;
    assert_eq!(vl.ask(nobody, first.clone()), Err(AbortCode::VL_PERM));
    assert_eq!(vl.ask(nobody, GetStats {}), Err(AbortCode::VL_PERM));
    assert!(vl.ask(Identity::Superuser, first).is_ok());
    let volumename = "a".try_into().unwrap();
    assert!(vl.ask(nobody, GetEntryByNameN { volumename }).is_ok());
}
