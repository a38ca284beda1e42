//! Tests of devices: numbers, missing disks, exchanged disks.

use std::cell::RefCell;
use std::net::IpAddr;

use super::*;

#[derive(Default)]
struct Table(RefCell<Vec<OsdEntry>>);

impl OsdTable for Table {
    fn get(&self, asked: GetOsd) -> Result<OsdEntry, AbortCode> {
        let entries = self.0.borrow();
        let found = entries.iter().find(|entry| entry.name == asked.name);
        found.cloned().ok_or(AbortCode::ENOENT)
    }

    fn create(&self, mut entry: OsdEntry) -> Result<u32, AbortCode> {
        let mut entries = self.0.borrow_mut();
        entry.id = entries.len() as u32 + 2;
        entries.push(entry.clone());
        Ok(entry.id)
    }
}

fn identity() -> Identity {
    Identity {
        cell: cellar_client::Cell {
            name: cellar_client::CellName::new("demo.cell").expect("name"),
            database_servers: vec![IpAddr::from([192, 0, 2, 1])],
            ports: Ports::default(),
        },
        part: crate::cell_directory::Part::Whole,
        server_uuid: [1; 16],
        address: IpAddr::from([192, 0, 2, 1]),
        bind: IpAddr::from([192, 0, 2, 1]),
        location: "hq/r1/rack7".to_owned(),
        owner: "physics".to_owned(),
        complete: true,
        used: None,
    }
}

#[test]
fn devices_are_made_once_and_keep_their_numbers() {
    let directory = tempfile::tempdir().expect("tempdir");
    let etc = directory.path().join("server-etc");
    fs::create_dir(&etc).expect("etc");
    let authority = Authority::open(&etc, "demo.cell").expect("authority");
    let keys = keys(&authority, &etc).expect("keys");
    let table = Table::default();
    let open = |wanted| {
        let (path, identity) = (directory.path(), identity());
        let opened = open(
            path,
            &identity,
            config(&authority, keys.clone()),
            Durability::Strict,
            &Damaged::default(),
            wanted,
            &table,
        );
        let server = opened.expect("open")?;
        let devices = server.devices();
        server.stop().expect("stop");
        Some(devices)
    };
    assert_eq!(open(0), None);
    assert_eq!(open(2), Some(vec![2, 3]));
    assert_eq!(open(0), Some(vec![2, 3]));
    assert_eq!(open(3), Some(vec![2, 3, 4]));
    // A crash after the entry was made.
    fs::remove_file(directory.path().join("osd2").join(NUMBER_FILE)).expect("remove");
    fs::write(directory.path().join(USED_FILE), "osd1\nosd3\n").expect("write");
    assert_eq!(open(3), Some(vec![2, 3, 4]));
    // A disk that is not mounted is not a new device.
    let (mounted, away) = (directory.path().join("osd3"), directory.path().join("away"));
    fs::rename(&mounted, &away).expect("unmounted");
    fs::create_dir(&mounted).expect("what is below it");
    let refused = check_mounted(directory.path(), &mounted).expect_err("not mounted");
    assert!(
        refused.to_string().contains("is its disk mounted?"),
        "{refused}"
    );
    assert!(!mounted.join(NUMBER_FILE).exists());
    fs::remove_dir(&mounted).expect("empty");
    fs::rename(&away, &mounted).expect("mounted");
    assert_eq!(open(0), Some(vec![2, 3, 4]));
    // A digit of a number changes: to the number of no device, and to the number of another
    // device.
    let (one, number) = (directory.path().join("osd1"), NUMBER_FILE);
    let refuses = |text: &str, said: &str| {
        fs::write(one.join(number), text).expect("write");
        let (path, identity) = (directory.path(), identity());
        let damaged = Damaged::default();
        let config = config(&authority, keys.clone());
        let opened = super::open(
            path,
            &identity,
            config,
            Durability::Strict,
            &damaged,
            0,
            &table,
        );
        let refused = opened.expect_err("refused").to_string();
        assert!(refused.contains(said), "{refused}");
    };
    refuses("6\n", "not the number of a device used here");
    refuses("3\n", "of both holds 3");
    refuses("", "does not hold the number of a device");
    fs::remove_file(one.join(number)).expect("removed");
    let refused = check_mounted(directory.path(), &one).expect_err("without a number");
    assert!(
        refused.to_string().contains("with the number 2"),
        "{refused}"
    );
    // Exchanged disks, and a list without numbers.
    fs::write(one.join(number), "2\n").expect("write");
    let (two, away) = (directory.path().join("osd2"), directory.path().join("away"));
    for (from, to) in [(&one, &away), (&two, &one), (&away, &two)] {
        fs::rename(from, to).expect("exchanged");
    }
    assert_eq!(open(0), Some(vec![2, 3, 4]));
    fs::write(directory.path().join(USED_FILE), "osd1\nosd2\n").expect("write");
    assert_eq!(open(0), Some(vec![2, 3, 4]));
    let noted = fs::read_to_string(directory.path().join(USED_FILE)).expect("read");
    assert_eq!(noted, "osd1 3\nosd2 2\nosd3 4\n");
    let entries = table.0.borrow();
    assert_eq!((entries.len(), entries[2].partition), (3, 2));
    assert_eq!(entries[0].port, 7006);
    assert_eq!(entries[0].location.as_bytes(), b"hq/r1/rack7");
    assert_eq!(entries[0].owner.as_bytes(), b"physics");
}
