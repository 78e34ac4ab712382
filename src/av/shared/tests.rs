//! Files of shared vectors that were damaged, left behind, or written by other software.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;

use super::*;
use crate::av::table::SlotState;

/// A vector in a directory of its test's own.
struct Stage {
    directory: tempfile::TempDir,
}

impl Stage {
    fn new() -> Self {
        Stage {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    fn try_open(&self, read_only: bool) -> Result<OpenedStore> {
        let named = SharedVectorConfig {
            directory: self.directory.path(),
            domain: "lo",
            name: "stage",
            av_type: AvType::Unspec,
            map_addr: 0,
            read_only,
        };
        SharedStore::open(&named)
    }

    fn open(&self) -> OpenedStore {
        self.try_open(false).unwrap()
    }

    fn own_directory(&self) -> PathBuf {
        fs::read_dir(self.directory.path())
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .path()
    }

    /// The files of this kind.
    fn files(&self, extension: &str) -> Vec<PathBuf> {
        let all = fs::read_dir(self.own_directory())
            .unwrap()
            .map(|entry| entry.unwrap().path());
        all.filter(|path| path.extension().is_some_and(|found| found == extension))
            .collect()
    }

    /// The file of records, to be written to as another process might.
    fn data(&self) -> File {
        let path = self.files("av").remove(0);
        fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .unwrap()
    }
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

fn insert(shared: &SharedStore, port: u16) -> Result<FabricAddr> {
    let reserved = shared.reserve(1)?;
    let entry = Entry {
        address: address(port),
        user_id: None,
        auth_key: None,
    };
    shared.commit(reserved, vec![Ok(entry)]).remove(0)
}

fn ports(shared: &SharedStore) -> Vec<u16> {
    let ports = |table: &Table| {
        table
            .entries()
            .map(|(_, entry)| entry.address.port())
            .collect()
    };
    shared.with_table(ports).unwrap()
}

/// Whatever bytes are in the file: nothing panics, no length in the file is allocated, and intact
/// addresses stay.
#[test]
fn a_damaged_record_is_skipped_and_harms_no_other() {
    let stage = Stage::new();
    let opened = stage.open();
    let shared = &opened.shared;
    let addrs: Vec<FabricAddr> = (1..=4).map(|port| insert(shared, port).unwrap()).collect();
    let data = stage.data();
    for at in 0..RECORD_SIZE as u64 {
        let (offset, mut byte) = (record::offset(1) + at, [0]);
        data.read_exact_at(&mut byte, offset).unwrap();
        data.write_all_at(&[byte[0] ^ 0x5a], offset).unwrap();
        assert_eq!(shared.get(addrs[1]).unwrap(), None, "byte {at}");
        data.write_all_at(&byte, offset).unwrap();
    }
    // A record of another index, or another vector, is none of this one's.
    let mut record = [0; RECORD_SIZE];
    data.read_exact_at(&mut record, record::offset(0)).unwrap();
    data.write_all_at(&record, record::offset(1)).unwrap();
    assert_eq!(shared.get(addrs[1]).unwrap(), None);
    let slot = AddressSlot {
        generation: addrs[1].generation(),
        state: SlotState::Used(Entry {
            address: address(9),
            user_id: None,
            auth_key: None,
        }),
    };
    let foreign = record::encode(&slot, shared.vector ^ 2, 1);
    data.write_all_at(&foreign, record::offset(1)).unwrap();
    assert_eq!(shared.get(addrs[1]).unwrap(), None);
    // A process that opens it anew sees the same; the damaged slot is not used again.
    let second = stage.open();
    assert_eq!(ports(&second.shared), [1, 3, 4]);
    assert_eq!(insert(&second.shared, 7).unwrap().index(), 4);
    assert_eq!(shared.get(addrs[3]).unwrap().unwrap().address, address(4));
}

/// fi_av(3) asks for no more than peers' addresses; a record that is sealed and holds none is as
/// good as damaged.
#[test]
fn sealed_records_are_checked_as_well() {
    let used = |address: SocketAddr, generation| AddressSlot {
        generation,
        state: SlotState::Used(Entry {
            address,
            user_id: None,
            auth_key: None,
        }),
    };
    let decoded = |slot: &AddressSlot| record::decode(&record::encode(slot, 1, 5), 1, 5);
    let good = used("[fe80::1%3]:7".parse().unwrap(), 9);
    assert_eq!(decoded(&good), Some(good));
    let good = used(address(7), FabricAddr::GENERATION_COUNT - 1);
    assert_eq!(decoded(&good), Some(good));
    assert_eq!(decoded(&AddressSlot::RETIRED), Some(AddressSlot::RETIRED));
    for wrong in [
        used(address(0), 0),
        used("0.0.0.0:5".parse().unwrap(), 0),
        used(address(7), FabricAddr::GENERATION_COUNT),
        used(address(7), u32::MAX),
    ] {
        assert_eq!(decoded(&wrong), None, "{wrong:?}");
    }
    assert_eq!(
        record::decode(&[0; RECORD_SIZE], 1, 5),
        Some(AddressSlot::NEW)
    );
    assert_eq!(record::decode(&[0; RECORD_SIZE - 1], 1, 5), None);
}

/// A file that claims to be larger than any vector is read up to the bound only.
#[test]
fn a_huge_file_is_read_to_the_bound_only() {
    let stage = Stage::new();
    let opened = stage.open();
    insert(&opened.shared, 1).unwrap();
    stage.data().set_len(1 << 40).unwrap();
    let mut header = opened.shared.header().unwrap();
    header.begin_change();
    header.end_change();
    stage.data().write_all_at(&header.encode(), 0).unwrap();
    assert_eq!(ports(&opened.shared), [1]);
    assert_eq!(insert(&opened.shared, 2).unwrap().index(), 1);
    let beyond = FabricAddr::new(opened.shared.vector, 0, SHARED_ADDRESSES_MAX);
    assert_eq!(opened.shared.get(beyond).unwrap(), None);
    assert_eq!(opened.shared.at(usize::MAX).unwrap(), None);
}

/// A truncated file loses the records beyond its end; if its header is gone too, the calls fail.
#[test]
fn a_truncated_file_is_an_error_and_no_end_of_the_process() {
    let stage = Stage::new();
    let opened = stage.open();
    let addr = insert(&opened.shared, 1).unwrap();
    stage.data().set_len(RECORD_SIZE as u64 + 10).unwrap();
    assert_eq!(opened.shared.get(addr).unwrap(), None);
    stage.data().set_len(0).unwrap();
    let errors = [
        opened.shared.with_table(Table::len).map(drop),
        insert(&opened.shared, 2).map(drop),
        opened.shared.remove(&[addr]).map(drop),
        stage.try_open(false).map(drop),
    ];
    for error in errors {
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Incompatible);
    }
}

/// A writer that died in the middle has left its mark: the next writer reads all records, and
/// readers see the records that were intact.
#[test]
fn a_writer_that_died_in_the_middle_is_noticed() {
    let stage = Stage::new();
    let (opened, reader) = (stage.open(), stage.try_open(true).unwrap());
    let addr = insert(&opened.shared, 1).unwrap();
    assert_eq!(ports(&reader.shared), [1]);
    // The writer has begun, written one record in full and half of another, and died.
    let mut header = opened.shared.header().unwrap();
    header.begin_change();
    let data = stage.data();
    data.write_all_at(&header.encode(), 0).unwrap();
    let slot = AddressSlot {
        generation: 0,
        state: SlotState::Used(Entry {
            address: address(2),
            user_id: None,
            auth_key: None,
        }),
    };
    let whole = record::encode(&slot, opened.shared.vector, 1);
    data.write_all_at(&whole, record::offset(1)).unwrap();
    let torn = record::encode(&slot, opened.shared.vector, 2);
    data.write_all_at(&torn[..20], record::offset(2)).unwrap();
    assert_eq!(ports(&reader.shared), [1, 2]);
    assert_eq!(
        insert(&opened.shared, 3).unwrap().index(),
        2,
        "a record cut short is not there"
    );
    assert!(!opened.shared.header().unwrap().changing);
    for shared in [&opened.shared, &reader.shared] {
        assert_eq!(ports(shared), [1, 2, 3]);
        assert_eq!(shared.get(addr).unwrap().unwrap().address, address(1));
    }
}

/// Files that were left of a vector that no process has open are not found again, whatever they
/// are; and the last process to close a vector leaves none.
#[test]
fn leftovers_are_removed() {
    let stage = Stage::new();
    let opened = stage.open();
    insert(&opened.shared, 1).unwrap();
    drop(opened.membership);
    assert!(stage.files("av").is_empty() && stage.files("members").is_empty());
    // As a process that is killed leaves it.
    let opened = stage.open();
    insert(&opened.shared, 1).unwrap();
    let old = opened.shared.vector;
    let (data, members) = (
        stage.files("av").remove(0),
        stage.files("members").remove(0),
    );
    let kept = [(&data, "old.av"), (&members, "old.members")]
        .map(|(path, name)| (path.clone(), path.with_file_name(name)));
    for (path, kept) in &kept {
        fs::copy(path, kept).unwrap();
    }
    drop(opened);
    for (path, kept) in &kept {
        fs::rename(kept, path).unwrap();
    }
    assert_eq!(
        stage.try_open(true).map(drop).unwrap_err().kind(),
        ErrorKind::NoMatch
    );
    assert!(stage.files("av").is_empty());
    fs::write(&data, b"anything").unwrap();
    let opened = stage.open();
    assert!(ports(&opened.shared).is_empty());
    assert_ne!(opened.shared.vector, old);
}

/// A directory that others may write to is not trusted, nor is a file that is not one.
#[test]
fn what_others_may_have_made_is_not_trusted() {
    let stage = Stage::new();
    let opened = stage.open();
    drop(opened);
    let own = stage.own_directory();
    fs::set_permissions(&own, fs::Permissions::from_mode(0o777)).unwrap();
    let refused = stage.try_open(false).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AccessDenied);
    fs::set_permissions(&own, fs::Permissions::from_mode(0o700)).unwrap();
    // A link in place of a member's file leads nowhere.
    let opened = stage.open();
    let members = stage.files("members").remove(0);
    drop(opened);
    std::os::unix::fs::symlink("/dev/null", members).unwrap();
    assert!(stage.try_open(false).is_err());
}

/// A lock that another process keeps costs a bounded time, and then an answer.
#[test]
fn a_lock_that_is_kept_is_answered_by_again() {
    let stage = Stage::new();
    let opened = stage.open();
    let addr = insert(&opened.shared, 1).unwrap();
    let data = stage.data();
    flock(&data, FlockOperation::LockExclusive).unwrap();
    assert_eq!(
        insert(&opened.shared, 2).unwrap_err().kind(),
        ErrorKind::Again
    );
    // Reading takes no lock.
    assert_eq!(
        opened.shared.get(addr).unwrap().unwrap().address,
        address(1)
    );
    assert_eq!(ports(&opened.shared), [1]);
    drop(data);
    insert(&opened.shared, 2).unwrap();
}
