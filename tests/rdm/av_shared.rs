//! Address vectors that processes share by name (`fi_av(3)`, `FI_SHARED_AV`).

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::common::child::{PeerProcess, end_with_the_parent, say};
use tokio_fabric::testing::Net;
use tokio_fabric::*;
use tokio_fabric::{av::*, info::*};

/// What a child process gets its vector's name by.
const NAME: &str = "TOKIO_FABRIC_TEST_AV_NAME";

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

fn domain() -> Domain {
    let hints = Hints::new().address_format(AddressFormat::SockaddrIn);
    let fabric = Net::loopback().fabric_with(hints).unwrap();
    fabric.domain().open().unwrap()
}

/// A name that no other test, and no other run, has.
fn name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("test/{}/{number}", std::process::id())
}

fn open(name: &str) -> AddressVector {
    domain().address_vector().name(name).open().unwrap()
}

#[track_caller]
fn refused<T>(result: Result<T>, kind: ErrorKind) {
    assert_eq!(result.err().map(|error| error.kind()), Some(kind));
}

/// fi_av(3): "Address vectors may be shared across multiple processes which access the same named
/// domain on the same node." `fi_av_attr.name`.
/// fi_av(3): "Processes that provide the same value for map_addr to a shared AV may use the same
/// fi_addr_t values returned from an fi_av_insert call."
/// fi_domain(3): "the ability to share address vectors among multiple processes using the named
/// address vector feature."
/// A killed process keeps nothing: neither the vector's lock nor its addresses.
#[tokio::test]
async fn another_process_uses_the_same_names() {
    let name = name();
    let vector = open(&name);
    let mine = vector.insert(address(1)).now().unwrap();
    let variables = [(NAME, name.clone())];
    let (mut child, said) = PeerProcess::start("av_shared::the_other_process", &variables);
    // It has found this one's address, and inserted its own.
    let (seen, theirs) = said.split_once(' ').unwrap();
    assert_eq!(seen.parse(), Ok(mine.to_bits()));
    let theirs = FabricAddr::from_bits(theirs.parse().unwrap());
    assert_eq!(vector.lookup(theirs).unwrap(), address(2));
    assert_eq!(vector.addresses(), [mine, theirs]);
    child.kill();
    assert_eq!(vector.lookup(theirs).unwrap(), address(2));
    vector.remove(theirs).unwrap();
    let next = vector.insert(address(3)).now().unwrap();
    assert_eq!(next.index(), theirs.index());
    refused(vector.lookup(theirs), ErrorKind::InvalidArgument);
}

#[tokio::test]
#[ignore = "the child of another test"]
async fn the_other_process() {
    end_with_the_parent();
    let name = std::env::var(NAME).expect("the parent names the vector");
    let vector = open(&name);
    let seen = vector
        .fabric_addr(address(1))
        .expect("the parent's address");
    let mine = vector.insert(address(2)).now().expect("room for one more");
    say(format!("{} {}", seen.to_bits(), mine.to_bits()));
    std::future::pending::<()>().await;
}

/// fi_av(3): "a named AV will be created, if it does not already exist."
/// It ends with the last process that has it open, also one that is killed: the next to open the
/// name finds no address of theirs, and takes none of their names.
#[tokio::test]
async fn a_vector_ends_with_the_last_process_that_has_it() {
    let name = name();
    let variables = [(NAME, name.clone())];
    let vector = open(&name);
    let old = vector.insert(address(1)).now().unwrap();
    let (mut child, _) = PeerProcess::start("av_shared::the_other_process", &variables);
    vector.close().await.unwrap();
    assert_eq!(open(&name).len(), 2, "the child keeps it");
    child.kill();
    let new = open(&name);
    assert!(new.is_empty());
    let again = new.insert(address(1)).now().unwrap();
    assert_eq!(again.index(), old.index());
    refused(new.lookup(old), ErrorKind::InvalidArgument);
    drop(new);
    assert!(open(&name).is_empty());
}

/// fi_av(3): "Opens an AV for read-only access. An AV opened for read-only access must be named
/// (name attribute specified), and the AV must exist." `FI_READ`.
#[tokio::test]
async fn a_read_only_vector_looks_and_changes_nothing() {
    let (name, domain) = (name(), domain());
    let reader = || domain.address_vector().name(&name).read_only().open();
    refused(reader(), ErrorKind::NoMatch);
    let nameless = domain.address_vector().read_only().open();
    refused(nameless, ErrorKind::InvalidArgument);
    let vector = open(&name);
    let addr = vector.insert(address(1)).now().unwrap();
    let reader = reader().unwrap();
    assert_eq!(reader.lookup(addr).unwrap(), address(1));
    assert_eq!(reader.fabric_addr(address(1)), Some(addr));
    refused(reader.insert(address(2)).now(), ErrorKind::AccessDenied);
    refused(reader.insert(address(2)).await, ErrorKind::AccessDenied);
    refused(reader.remove(addr), ErrorKind::AccessDenied);
    // What others change is seen at once.
    let second = vector.insert(address(2)).now().unwrap();
    assert_eq!(reader.fabric_addr(address(2)), Some(second));
    vector.remove(addr).unwrap();
    refused(reader.lookup(addr), ErrorKind::InvalidArgument);
    assert_eq!((reader.fabric_addr(address(1)), reader.len()), (None, 1));
}

/// fi_av(3): "If name is non-NULL and map_addr is 0, then the map_addr used by the provider will be
/// returned through the attribute structure." `fi_av_attr.map_addr`.
/// fi_av(3): "The map_addr field is ignored if name is NULL."
/// The type is that of the domain that made the vector.
#[tokio::test]
async fn type_and_map_addr_are_given_to_those_who_join() {
    let (name, domain) = (name(), domain());
    let named = || domain.address_vector().name(&name);
    let first = named()
        .av_type(AvType::Map)
        .map_addr(0x1000)
        .open()
        .unwrap();
    let second = named().open().unwrap();
    assert_eq!((first.av_type(), first.map_addr()), (AvType::Map, 0x1000));
    assert_eq!((second.av_type(), second.map_addr()), (AvType::Map, 0x1000));
    refused(
        named().av_type(AvType::Table).open(),
        ErrorKind::InvalidArgument,
    );
    let chosen = open(&self::name());
    assert_ne!(chosen.map_addr(), 0);
    let plain = domain.address_vector().map_addr(5).open().unwrap();
    assert_eq!(plain.map_addr(), 0);
    refused(
        domain.address_vector().name("").open(),
        ErrorKind::InvalidArgument,
    );
}

/// Two handles insert, remove and find as if they were one; each name is the same by both,
/// whichever of them inserted it.
#[tokio::test]
async fn changes_of_each_are_seen_by_all() {
    let name = name();
    let vectors = [open(&name), open(&name)];
    let mut alive: Vec<(FabricAddr, u16)> = Vec::new();
    for round in 0..100_u16 {
        let (one, other) = (usize::from(round % 2), usize::from((round + 1) % 2));
        let port = 1 + round;
        let addr = vectors[one].insert(address(port)).now().unwrap();
        refused(
            vectors[other].insert(address(port)).now(),
            ErrorKind::AddressInUse,
        );
        assert_eq!(vectors[other].lookup(addr).unwrap(), address(port));
        alive.push((addr, port));
        if round % 3 == 0 {
            let (gone, port) = alive.swap_remove(usize::from(round) % alive.len());
            vectors[other].remove(gone).unwrap();
            refused(vectors[one].lookup(gone), ErrorKind::InvalidArgument);
            assert_eq!(vectors[one].fabric_addr(address(port)), None);
        }
    }
    for vector in &vectors {
        assert_eq!(vector.len(), alive.len());
        for (addr, port) in &alive {
            assert_eq!(vector.fabric_addr(address(*port)), Some(*addr));
            assert_eq!(vector.at(addr.index()), Some(*addr));
        }
    }
}

/// Threads that each have it open for themselves, as processes would, insert at the same time: no
/// index is given twice, and no address is lost.
#[test]
fn insertions_at_the_same_time_lose_nothing() {
    let name = name();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let vectors: Vec<AddressVector> = runtime.block_on(async { vec![open(&name); 1] });
    std::thread::scope(|threads| {
        for thread in 0..4_u16 {
            let (name, runtime) = (&name, &runtime);
            threads.spawn(move || {
                let vector = runtime.block_on(async { open(name) });
                let mut inserted = 0;
                while inserted < 50 {
                    match vector.insert(address(1 + thread * 100 + inserted)).now() {
                        Ok(_) => inserted += 1,
                        Err(error) => assert!(error.is_again(), "{error}"),
                    }
                }
            });
        }
    });
    let indices = vectors[0].addresses().into_iter().map(FabricAddr::index);
    assert_eq!(indices.collect::<Vec<_>>(), (0..200).collect::<Vec<_>>());
}

/// fi_av(3): "This feature may be unavailable if shared AVs are requested"
/// It is: user ids are refused, and not dropped.
#[tokio::test]
async fn shared_vectors_take_no_user_ids() {
    let vector = open(&name());
    refused(
        vector.insert(address(1)).user_id(1).now(),
        ErrorKind::Unsupported,
    );
    assert!(vector.is_empty());
}

/// Names and asynchronous insertion go with sharing.
#[tokio::test]
async fn shared_vectors_insert_names_asynchronously_too() {
    let (name, domain) = (name(), domain());
    let events = Net::loopback()
        .fabric()
        .unwrap()
        .event_queue()
        .open()
        .unwrap();
    let vector = domain
        .address_vector()
        .name(&name)
        .asynchronous()
        .open()
        .unwrap();
    vector.bind(&events).unwrap();
    vector
        .insert_service("localhost", "7")
        .submit(1u64)
        .unwrap();
    match events.next().await {
        Some(Event::AvComplete { count: 1, .. }) => {}
        other => panic!("{other:?} instead of AvComplete"),
    }
    let found = open(&name).fabric_addr(SocketAddr::from(([127, 0, 0, 1], 7)));
    assert_eq!(found, vector.at(0));
    assert!(found.is_some());
}
