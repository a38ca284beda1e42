//! Tests structures word by word: their size, and the position of each field.
//!
//! The expected values come from the interface, not from the output of our encoder. Each field has
//! its own number, and the words are listed in the interface's order.

use cellar_wire::abort::AbortCode;
use cellar_wire::host::{Interface, InterfaceAddr};
use cellar_wire::{
    AfsTime, AfsUuid, Decode, Encode, Fid, List, Procedure, Rights, Uniquifier, ViceId, VnodeId,
    VolumeId, afsvol, bozo, disk, pr, rxafs, rxafscb, rxperf, rxstats, vl, vote,
};

fn words(value: &impl Encode) -> Vec<u32> {
    let bytes = value.to_xdr();
    let (words, rest) = bytes.as_chunks();
    assert!(rest.is_empty());
    words.iter().map(|word| u32::from_be_bytes(*word)).collect()
}

#[test]
fn structures_take_as_many_words_as_the_interface_says() {
    fn check<T: Decode>(expected: usize) {
        assert_eq!(T::MIN_SIZE, 4 * expected, "{}", std::any::type_name::<T>());
    }
    check::<Fid>(3);
    check::<AfsUuid>(11);
    check::<InterfaceAddr>(108);
    check::<rxafs::Callback>(3);
    check::<rxafs::VolSync>(6);
    check::<rxafs::AfsFetchStatus>(21);
    check::<rxafs::AfsStoreStatus>(6);
    check::<rxafs::FetchVolumeStatus>(12);
    check::<rxafs::StoreVolumeStatus>(3);
    check::<rxafs::ViceDisk>(10);
    check::<rxafs::ViceStatistics>(145);
    check::<rxafs::VolumeInfo>(16);
    check::<rxafs::AfsVolumeInfo>(24);
    check::<rxafs::FsCmdInputs>(1 + 3 + 6 + 200 + 256);
    check::<rxafs::FsCmdOutputs>(1 + 21 + 6 + 200 + 256);
    check::<rxafscb::DbLockDescription>(8);
    check::<rxafscb::DbLock>(24);
    check::<rxafscb::CacheEntry>(22);
    check::<rxafscb::CacheEntry64>(23);
    check::<vl::VldbEntry>(96);
    check::<vl::NvldbEntry>(119);
    check::<vl::UvldbEntry>(262);
    check::<vl::VldbUpdateEntry>(120);
    check::<vl::VldbListByAttributes>(6);
    check::<vl::ListAddrByAttributes>(15);
    check::<vl::VlCallBack>(4);
    check::<vl::VitalVlHeader>(10);
    check::<vl::VldStats>(106);
    check::<pr::PrEntry>(76);
    check::<pr::PrUpdateEntry>(77);
    check::<pr::PrDebugEntry>(96);
    check::<afsvol::VolserStatus>(16);
    check::<afsvol::DestServer>(3);
    check::<afsvol::VolumeInfo>(55);
    check::<afsvol::VolumeInfoX>(80);
    check::<afsvol::TransDebugInfo>(44);
    check::<afsvol::ListPartitionsReply>(26);
    check::<afsvol::DiskPartition>(68);
    check::<afsvol::DiskPartition64>(519);
    check::<afsvol::RestoreCookie>(35);
    check::<afsvol::Replica>(4);
    check::<afsvol::VolumeSize>(2);
    check::<bozo::NetKTime>(5);
    check::<bozo::BozoKey>(8);
    check::<bozo::BozoKeyInfo>(4);
    check::<bozo::BozoStatus>(17);
    check::<vote::UbikDebugOld>(28);
    check::<vote::UbikDebug>(284);
    check::<vote::UbikSdebugOld>(9);
    check::<vote::UbikSdebug>(264);
    check::<disk::UbikInterfaceAddr>(256);
    check::<rxstats::RpcStat>(28);
}

#[test]
fn a_status_has_its_fields_in_order() {
    let status = rxafs::AfsFetchStatus {
        file_type: rxafs::FileType::Symlink,
        link_count: 101,
        length: 0x1111_0000_0000 + 102,
        data_version: 0x2222_0000_0000 + 103,
        author: ViceId(-104),
        owner: ViceId(105),
        caller_access: Rights(106),
        anonymous_access: Rights(107),
        unix_mode: 108,
        parent_vnode: VnodeId(109),
        parent_uniquifier: Uniquifier(110),
        client_mod_time: AfsTime(112),
        server_mod_time: AfsTime(113),
        group: ViceId(114),
        lock_count: -1,
        error_code: AbortCode(118),
    };
    let expected = [
        1,
        3,
        101,
        102,
        103,
        -104i32 as u32,
        105,
        106,
        107,
        108,
        109,
        110,
        1,
        112,
        113,
        114,
        0,
        0x2222,
        u32::MAX,
        0x1111,
        118,
    ];
    assert_eq!(words(&status), expected);

    let failed = rxafs::AfsFetchStatus::failed(AbortCode::VNOVNODE);
    let mut expected = [0; 21];
    (expected[0], expected[20]) = (1, 102);
    assert_eq!(words(&failed), expected);
}

#[test]
fn a_status_to_store_is_a_mask_and_five_values() {
    let nothing = rxafs::AfsStoreStatus::default();
    assert_eq!(words(&nothing), [0; 6]);
    let all = rxafs::AfsStoreStatus {
        client_mod_time: Some(AfsTime(1)),
        owner: Some(ViceId(2)),
        group: Some(ViceId(3)),
        unix_mode: Some(0o644),
        segment_size: Some(5),
        fsync: true,
    };
    assert_eq!(words(&all), [1024 + 31, 1, 2, 3, 0o644, 5]);
    let quota = rxafs::StoreVolumeStatus {
        min_quota: None,
        max_quota: Some(5000),
    };
    assert_eq!(words(&quota), [2, 0, 5000]);
    assert_eq!(words(&rxafs::Callback::shared(14400)), [1, 14400, 2]);
    let sync = rxafs::VolSync {
        creation_date: AfsTime(9),
    };
    assert_eq!(words(&sync), [9, 0, 0, 0, 0, 0]);
}

fn padded<const N: usize>(text: &str) -> Vec<u32> {
    let mut words: Vec<_> = text.bytes().map(u32::from).collect();
    words.resize(N, 0);
    words
}

fn column<const N: usize>(values: &[u32]) -> Vec<u32> {
    let mut words = values.to_vec();
    words.resize(N, 0);
    words
}

#[test]
fn location_entries_are_parallel_arrays() {
    let sites = [
        vl::Site {
            server: 0xc000_0201,
            partition: 1,
            flags: vl::VLSF_RWVOL,
        },
        vl::Site {
            server: 0xc000_0202,
            partition: 2,
            flags: vl::VLSF_ROVOL,
        },
    ];
    let entry = vl::NvldbEntry {
        name: "root.cell".try_into().unwrap(),
        sites: List::try_from(&sites[..]).unwrap(),
        volume_ids: [VolumeId(7), VolumeId(8), VolumeId(9)],
        clone_id: VolumeId(10),
        flags: vl::VLF_RWEXISTS,
        match_index: 12,
    };
    let tail = [7, 8, 9, 10, 0x1000];
    let arrays = |pad: fn(&[u32]) -> Vec<u32>| {
        [pad(&[0xc000_0201, 0xc000_0202]), pad(&[1, 2]), pad(&[4, 2])].concat()
    };
    let name = padded::<65>("root.cell");
    let expected = [
        &name[..],
        &[2],
        &arrays(column::<13>),
        &tail,
        &[12],
        &[0; 8],
    ]
    .concat();
    assert_eq!(words(&entry), expected);
    let expected = [&name[..], &[0, 2], &arrays(column::<8>), &tail].concat();
    assert_eq!(words(&entry.to_old()), expected);

    let uuid = AfsUuid(*b"\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10");
    let uuid_sites = [vl::UuidSite {
        server: uuid,
        uniquifier: 3,
        partition: 4,
        flags: 0x14,
    }];
    let entry = vl::UvldbEntry {
        name: "root.cell".try_into().unwrap(),
        sites: List::try_from(&uuid_sites[..]).unwrap(),
        volume_ids: [VolumeId(7), VolumeId(8), VolumeId(9)],
        clone_id: VolumeId(10),
        flags: 0x1000,
        match_index: 12,
    };
    let server = column::<143>(&[0x0102_0304, 0x0506, 0x0708, 9, 10, 11, 12, 13, 14, 15, 16]);
    let rest = [
        column::<13>(&[3]),
        column::<13>(&[4]),
        column::<13>(&[0x14]),
    ]
    .concat();
    let expected = [&name[..], &[1], &server, &rest, &tail, &[12], &[0; 8]].concat();
    assert_eq!(words(&entry), expected);
}

#[test]
fn a_hosts_addresses_are_parallel_arrays() {
    let interfaces = [
        Interface {
            address: 1,
            netmask: 2,
            mtu: 3,
        },
        Interface {
            address: 4,
            netmask: 5,
            mtu: 6,
        },
    ];
    let host = InterfaceAddr {
        uuid: AfsUuid::from_address(0x0a00_0001),
        interfaces: List::try_from(&interfaces[..]).unwrap(),
    };
    let expected = [
        column::<12>(&[2, 0x0a00_0001]),
        column::<32>(&[1, 4]),
        column::<32>(&[2, 5]),
        column::<32>(&[3, 6]),
    ];
    assert_eq!(words(&host), expected.concat());
    let mut too_many = host.to_xdr().to_vec();
    too_many[3] = 33;
    assert!(InterfaceAddr::from_xdr(&too_many).is_err());
}

#[test]
fn requests_are_opcode_and_arguments() {
    let request = rxafs::CreateFile {
        dir_fid: Fid::new(1, 2, 3),
        name: "hello".try_into().unwrap(),
        in_status: rxafs::AfsStoreStatus {
            unix_mode: Some(0o600),
            ..Default::default()
        },
    };
    let mut golden = vec![0, 0, 0, 137, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3];
    golden.extend_from_slice(b"\0\0\0\x05hello\0\0\0");
    golden.extend_from_slice(b"\0\0\0\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x80\0\0\0\0");
    assert_eq!(request.to_request(), golden);

    let request = rxafs::FetchData64 {
        fid: Fid::new(1, 2, 3),
        position: 1 << 32,
        length: 5,
    };
    let bytes = request.to_request();
    let decoded = rxafs::FetchData64::from_xdr(&bytes[4..]);
    assert_eq!(bytes[..4], 65537u32.to_be_bytes());
    assert_eq!(
        bytes[16..],
        [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5]
    );
    assert_eq!(decoded, Ok(request));

    // Recorded on the wire with OpenAFS's server: SEND of four bytes.
    let measurement = rxperf::Measurement {
        read_chunk: 0x80000,
        write_chunk: 0x80000,
        command: rxperf::Command::Send { bytes: 4 },
    };
    let golden = b"\0\0\0\x03\0\0\0\0\0\x08\0\0\0\x08\0\0\0\0\0\x04";
    assert_eq!(rxperf::Measure { measurement }.to_request(), golden[..]);
}

#[test]
fn names_in_lists_take_a_word_for_each_character() {
    let names = pr::NameToID {
        names: vec!["al".try_into().unwrap()].try_into().unwrap(),
    };
    let expected = [&[504, 1], &padded::<64>("al")[..]].concat();
    let bytes = names.to_request();
    let (sent, _) = bytes.as_chunks();
    assert_eq!(
        sent.iter()
            .map(|word| u32::from_be_bytes(*word))
            .collect::<Vec<_>>(),
        expected
    );
    // Peers with signed characters extend the sign. The bytes after the NUL are arbitrary.
    let mut dirty = bytes.to_vec();
    dirty[8..11].fill(0xff);
    dirty[40] = 7;
    assert_eq!(pr::NameToID::from_xdr(&dirty[4..]), Ok(names));
    dirty[8..].fill(1);
    assert!(
        pr::NameToID::from_xdr(&dirty[4..]).is_err(),
        "a name without an end"
    );
}

#[test]
fn linked_lists_are_words_one_and_a_zero() {
    let entry = vl::VldbEntry {
        flags: 5,
        ..Default::default()
    };
    let chain = vl::Chain(vec![entry.clone(), entry].try_into().unwrap());
    let words = words(&chain);
    assert_eq!(words.len(), 2 * 97 + 1);
    assert_eq!((words[0], words[97], words[194]), (1, 1, 0));
}
