//! Address vectors and synchronous insertion (`fi_av(3)`).

use std::net::SocketAddr;

use crate::common::on_every_backend;
use tokio_fabric::testing::Net;
use tokio_fabric::*;
use tokio_fabric::{av::*, info::*};

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

fn hints() -> Hints {
    Hints::new().address_format(AddressFormat::SockaddrIn)
}

fn domain(hints: Hints) -> Domain {
    let fabric = Net::loopback().fabric_with(hints).unwrap();
    fabric.domain().open().unwrap()
}

fn open() -> AddressVector {
    domain(hints()).address_vector().open().unwrap()
}

#[track_caller]
fn refused<T>(result: Result<T>, kind: ErrorKind) {
    assert_eq!(result.err().map(|error| error.kind()), Some(kind));
}

fn indices(results: &[Result<FabricAddr>]) -> Vec<Option<usize>> {
    let index = |result: &Result<FabricAddr>| result.as_ref().ok().map(|addr| addr.index());
    results.iter().map(index).collect()
}

/// fi_av(3): "fi_av_open allocates or opens an address vector." `fi_av_open`, `fi_av_lookup`.
/// fi_av(3): "This call returns the address stored in the address vector that corresponds to the
/// given fi_addr."
/// fi_av(3): "associate a higher-level address with a simpler, more efficient value"
/// With any driver: a lookup reads a table.
#[test]
fn an_inserted_address_is_looked_up_by_its_name() {
    on_every_backend(async |net| {
        let domain = net.fabric_with(hints()).unwrap().domain().open().unwrap();
        let vector = domain
            .address_vector()
            .count(2)
            .context(7u64)
            .open()
            .unwrap();
        let addr = vector.insert(address(1)).now().unwrap();
        let other = vector.insert(address(2)).await.unwrap();
        assert_eq!(vector.lookup(addr).unwrap(), address(1));
        assert_eq!(vector.lookup(other).unwrap(), address(2));
        assert_eq!(vector.fabric_addr(address(2)), Some(other));
        assert_eq!((vector.len(), vector.context()), (2, Some(UserContext(7))));
        assert_eq!(FabricAddr::from_bits(other.to_bits()), other);
    });
}

/// fi_av(3): "The removed address - either the mapped address (in the case of FI_AV_MAP) or index
/// (FI_AV_TABLE) - is invalid until it is returned again by a new fi_av_insert."
/// fi_av(3): `fi_av_remove`, function.
#[tokio::test]
async fn a_removed_address_never_names_a_new_peer() {
    for av_type in [AvType::Map, AvType::Table] {
        let builder = domain(hints()).address_vector();
        let vector = builder.av_type(av_type).open().unwrap();
        let old = vector.insert(address(1)).now().unwrap();
        vector.remove(old).unwrap();
        let new = vector.insert(address(2)).now().unwrap();
        assert_eq!(new.index(), old.index());
        refused(vector.lookup(old), ErrorKind::InvalidArgument);
        refused(vector.remove(old), ErrorKind::InvalidArgument);
        refused(vector.user_id(old), ErrorKind::InvalidArgument);
        assert_eq!(vector.fabric_addr(address(1)), None);
        assert_eq!(vector.lookup(new).unwrap(), address(2));
    }
}

/// fi_av(3): "providers are required to support the removal, followed by the re-insertion of an
/// address."
/// The name is another one all the same.
#[tokio::test]
async fn a_removed_address_can_be_inserted_again() {
    let vector = open();
    let old = vector.insert(address(1)).now().unwrap();
    vector.remove(old).unwrap();
    let new = vector.insert(address(1)).now().unwrap();
    assert_ne!(new, old);
    refused(vector.lookup(old), ErrorKind::InvalidArgument);
    assert_eq!(vector.lookup(new).unwrap(), address(1));
}

/// fi_av(3): "fi_av_remove removes a set of addresses from an address vector."
/// fi_av(3): "Inserted addresses are not required to be removed."
#[tokio::test]
async fn a_set_of_addresses_is_removed_whole() {
    let vector = open();
    let added = vector.insert_all((1..=4).map(address)).now().unwrap();
    let added: Vec<FabricAddr> = added.into_iter().flatten().collect();
    vector.remove_all(&added[..2]).unwrap();
    assert_eq!(vector.addresses(), added[2..]);
    // One that is gone is an error, and keeps no other.
    let error = vector.remove_all(&added[1..]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains(&format!("{:?}", added[1])));
    assert!(vector.is_empty());
    vector.remove_all(&[]).unwrap();
}

/// A name is of its vector: another vector has no peer of that name.
#[tokio::test]
async fn names_of_another_vector_are_refused() {
    let domain = domain(hints());
    let vectors = [(); 2].map(|()| domain.address_vector().open().unwrap());
    let [mine, other] = vectors
        .each_ref()
        .map(|vector| vector.insert(address(1)).now().unwrap());
    assert_eq!(mine.index(), other.index());
    refused(vectors[0].lookup(other), ErrorKind::InvalidArgument);
    refused(vectors[1].remove(mine), ErrorKind::InvalidArgument);
    refused(
        vectors[0].lookup(FabricAddr::from_bits(u64::MAX)),
        ErrorKind::InvalidArgument,
    );
}

/// fi_av(3): "the returned fi_addr_t is an index, with the index for an inserted address the same
/// as its insertion order into the table." fi_av(3): "The index of the first address inserted into
/// an FI_AV_TABLE will be 0, and successive insertions will be given sequential indices." fi_av(3):
/// "Sequential indices will be assigned across insertion calls on the same AV." fi_av(3): "An
/// address is inserted at the lowest index that corresponds to an unused table location, with
/// indices starting at 0." fi_domain(3): `FI_AV_TABLE`, enumeration value.
#[tokio::test]
async fn a_table_has_dense_indices_in_the_order_of_insertion() {
    let builder = domain(hints()).address_vector();
    let vector = builder.av_type(AvType::Table).open().unwrap();
    let first = vector.insert_all((1..=3).map(address)).now().unwrap();
    let second = vector.insert_all((4..=6).map(address)).now().unwrap();
    assert_eq!(indices(&first), [Some(0), Some(1), Some(2)]);
    assert_eq!(indices(&second), [Some(3), Some(4), Some(5)]);
    for (index, port) in (1..=6).enumerate() {
        let addr = vector.at(index).unwrap();
        assert_eq!(vector.lookup(addr).unwrap(), address(port));
    }
    vector.remove(vector.at(4).unwrap()).unwrap();
    vector.remove(vector.at(1).unwrap()).unwrap();
    assert_eq!(vector.at(1), None);
    let third = vector.insert_all((7..=9).map(address)).now().unwrap();
    assert_eq!(indices(&third), [Some(1), Some(4), Some(6)]);
}

/// fi_av(3): `fi_av_insert`, function. "The fi_av_insert call inserts zero or more addresses into
/// an AV." fi_av(3): "Insertion calls for an AV opened for synchronous operation will return the
/// number of addresses that were successfully inserted." fi_av(3): "In the case of failure, the
/// return value will be less than the number of addresses that was specified." fi_av(3):
/// "individual insertion failures cannot be reported and the application must use other calls, such
/// as fi_av_lookup to learn which specific addresses failed to insert" fi_av(3): "The resulting
/// status of attempting to insert each address will be written to the corresponding array
/// location." fi_av(3): `FI_SYNC_ERR`: each address has its own result. A failed one leaves its
/// index free. fi_av(3): "the fi_addr buffer associated with a failed or aborted insertion will be
/// set to FI_ADDR_NOTAVAIL." Here it is an error in its place.
#[tokio::test]
async fn each_address_fails_on_its_own() {
    let vector = open();
    let wildcard = SocketAddr::from(([0, 0, 0, 0], 1));
    let v6: SocketAddr = "[2001:db8::1]:1".parse().unwrap();
    let given = [
        address(1),
        wildcard,
        address(2),
        address(1),
        v6,
        address(0),
        address(3),
    ];
    let results = vector.insert_all(given).now().unwrap();
    let wanted = [Some(0), None, Some(2), None, None, None, Some(6)];
    assert_eq!(indices(&results), wanted);
    assert_eq!(results.iter().flatten().count(), 3);
    let kind = |at: usize| results[at].as_ref().unwrap_err().kind();
    assert_eq!(kind(1), ErrorKind::InvalidArgument);
    assert_eq!(kind(3), ErrorKind::AddressInUse);
    assert_eq!(kind(4), ErrorKind::InvalidArgument);
    assert_eq!(kind(5), ErrorKind::InvalidArgument);
    assert_eq!(vector.at(1), None);
    let next = vector.insert_all([address(4), address(5)]).now().unwrap();
    assert_eq!(indices(&next), [Some(1), Some(3)]);
    assert!(vector.insert_all([]).now().unwrap().is_empty());
}

/// fi_av(3): `FI_MORE`, flag. "give a hint to the provider that more insertion requests will
/// follow"
#[tokio::test]
async fn insertions_that_announce_more_are_there_at_once() {
    let vector = open();
    let addr = vector.insert(address(1)).more().now().unwrap();
    assert_eq!(vector.lookup(addr).unwrap(), address(1));
    vector.insert(address(2)).now().unwrap();
    assert_eq!(vector.len(), 2);
}

/// fi_av(3): "An AV should only store a single instance of an address."
/// In whichever form it is written. The error says that it is there; its name can be looked up.
#[tokio::test]
async fn an_address_is_in_a_vector_once() {
    let vector = open();
    let addr = vector.insert(address(1)).await.unwrap();
    refused(vector.insert(address(1)).await, ErrorKind::AddressInUse);
    let mapped: SocketAddr = "[::ffff:10.0.0.1]:1".parse().unwrap();
    refused(vector.insert(mapped).now(), ErrorKind::AddressInUse);
    assert_eq!(vector.fabric_addr(mapped), Some(addr));
    assert_eq!(vector.len(), 1);
}

/// fi_av(3): "Addresses inserted into an address vector must be in the same format as specified in
/// the addr_format field of the fi_info struct provided when opening the corresponding domain."
/// Link-local addresses of different zones are different peers.
#[tokio::test]
async fn addresses_have_the_domains_form() {
    let peer = |text: &str| text.parse::<SocketAddr>().unwrap();
    let vector = open();
    refused(
        vector.insert(peer("[2001:db8::1]:1")).now(),
        ErrorKind::InvalidArgument,
    );
    let mut info = domain(hints()).info().clone();
    info.address_format = AddressFormat::SockaddrIn6;
    let fabric = Net::loopback().fabric_with(hints()).unwrap();
    let vector = fabric
        .domain()
        .info(info)
        .open()
        .unwrap()
        .address_vector()
        .open()
        .unwrap();
    // IPv4 has a form in that format too, and is kept as what it is.
    let addr = vector.insert(peer("[::ffff:10.0.0.1]:1")).now().unwrap();
    assert_eq!(vector.lookup(addr).unwrap(), address(1));
    refused(vector.insert(address(1)).now(), ErrorKind::AddressInUse);
    let near = [
        peer("[fe80::1%1]:1"),
        peer("[fe80::1%2]:1"),
        peer("[2001:db8::1]:1"),
    ];
    for address in near {
        let addr = vector.insert(address).now().unwrap();
        assert_eq!(vector.lookup(addr).unwrap(), address);
        assert_eq!(vector.fabric_addr(address), Some(addr));
    }
}

/// fi_av(3): "Provider will choose its preferred AV type. The AV type used will be returned through
/// the type field in fi_av_attr." `fi_av_attr.type`.
/// fi_domain(3): `fi_av_type`, enumeration. `FI_AV_UNSPEC`, enumeration value. `FI_AV_MAP`,
/// enumeration value.
/// fi_domain(3): "Any address vector format is requested and supported."
/// fi_domain(3): "Only address vectors of type AV map are requested or supported."
/// fi_domain(3): "Only address vectors of type AV index are requested or supported."
/// fi_domain(3): "may be used to indicate that the provider can support either address vector
/// format."
/// fi_domain(3): "should set the domain attribute av_type to the necessary value when calling
/// fi_getinfo."
#[tokio::test]
async fn the_domains_type_decides_where_the_vector_leaves_it_open() {
    use AvType::{Map, Table, Unspec};
    for (of_domain, asked, had) in [
        (Unspec, Unspec, Some(Table)),
        (Unspec, Map, Some(Map)),
        (Unspec, Table, Some(Table)),
        (Map, Unspec, Some(Map)),
        (Map, Map, Some(Map)),
        (Map, Table, None),
        (Table, Unspec, Some(Table)),
        (Table, Map, None),
    ] {
        let domain = domain(hints().domain(|attr| attr.av_type(of_domain)));
        assert_eq!(domain.info().domain.av_type, of_domain);
        let opened = domain.address_vector().av_type(asked).open();
        let kind = opened.as_ref().err().map(Error::kind);
        assert_eq!(kind, had.is_none().then_some(ErrorKind::InvalidArgument));
        assert_eq!(opened.ok().map(|vector| vector.av_type()), had);
    }
}

/// fi_av(3): "The use of FI_AV_MAP requires that an application store the returned fi_addr_t value
/// that is associated with each inserted address."
/// What was stored is all that is needed, as bits too.
#[tokio::test]
async fn a_map_names_its_addresses_by_what_it_returned() {
    let builder = domain(hints()).address_vector();
    let vector = builder.av_type(AvType::Map).open().unwrap();
    let added = vector.insert_all((1..=50).map(address)).now().unwrap();
    let stored: Vec<u64> = added
        .into_iter()
        .map(|addr| addr.unwrap().to_bits())
        .collect();
    for (bits, port) in stored.into_iter().zip(1..) {
        let addr = FabricAddr::from_bits(bits);
        assert_eq!(vector.lookup(addr).unwrap(), address(port));
    }
}

/// fi_av(3): "Indicates the expected number of addresses that will be inserted into the AV."
/// fi_av(3): `fi_av_attr.count`, `fi_av_attr.ep_per_node`: hints, however wrong they are.
#[tokio::test]
async fn hints_of_sizes_change_nothing_else() {
    let domain = domain(hints());
    for (count, per_node) in [(0, 0), (2, 0), (0, 2), (usize::MAX, usize::MAX)] {
        let builder = domain.address_vector();
        let vector = builder
            .count(count)
            .endpoints_per_node(per_node)
            .open()
            .unwrap();
        let added = vector.insert_all((1..=5).map(address)).now().unwrap();
        assert_eq!(indices(&added), [0, 1, 2, 3, 4].map(Some));
    }
}

/// fi_av(3): `FI_AV_USER_ID`. "This flag associates a user-assigned identifier with each AV entry"
/// fi_av(3): "the caller must specify an fi_addr_t identifier value to associate with each
/// address."
/// fi_av(3): "Note that the output from the AV insertion call is unchanged."
/// fi_domain(3): "FI_AV_USER_ID can still be supported through the AV insert calls without this
/// domain capability set."
#[tokio::test]
async fn insertions_give_user_ids_along() {
    let vector = open();
    let addr = vector.insert(address(1)).user_id(77).now().unwrap();
    assert_eq!((addr.index(), vector.user_id(addr).unwrap()), (0, Some(77)));
    let insert = vector.insert_all([address(2), address(2), address(3)]);
    let some = insert.user_ids([5, 6, 5]).await.unwrap();
    assert_eq!(vector.user_id(*some[0].as_ref().unwrap()).unwrap(), Some(5));
    assert_eq!(vector.user_id(*some[2].as_ref().unwrap()).unwrap(), Some(5));
    let grid = vector
        .insert_symmetric("10.0.0.2", 1, "1", 2)
        .user_ids([8, 9])
        .now()
        .unwrap();
    assert_eq!(vector.user_id(*grid[1].as_ref().unwrap()).unwrap(), Some(9));
    let plain = vector.insert(address(4)).now().unwrap();
    assert_eq!(vector.user_id(plain).unwrap(), None);
    let missed = vector.insert_all([address(5), address(6)]).user_ids([1]);
    refused(missed.now(), ErrorKind::InvalidArgument);
    assert_eq!(vector.fabric_addr(address(5)), None);
}

/// fi_domain(3): "the domain supports the ability to open address vectors with the FI_AV_USER_ID
/// flag."
/// fi_domain(3): "address vectors cannot be opened with FI_AV_USER_ID."
#[tokio::test]
async fn a_vector_of_user_ids_needs_the_domains_capability() {
    let without = domain(hints()).address_vector().user_ids().open();
    refused(without, ErrorKind::Unsupported);
    let domain = domain(hints().domain(|domain| domain.caps(Caps::AV_USER_ID)));
    let vector = domain.address_vector().user_ids().open().unwrap();
    refused(vector.insert(address(1)).now(), ErrorKind::InvalidArgument);
    refused(vector.insert(address(1)).await, ErrorKind::InvalidArgument);
    vector.insert(address(1)).user_id(1).now().unwrap();
    vector.insert_all([]).user_ids([]).now().unwrap();
}

/// fi_av(3): `fi_av_insertsvc`, function. "allows the application to specify the node and service
/// names, similar to the fi_getinfo inputs, rather than an encoded address."
/// fi_av(3): "Node should be a string that corresponds to a hostname or network address."
/// fi_av(3): "The service string corresponds to a textual representation of a transport address."
/// Names are looked up beside the runtime, on whatever drives the domain.
#[test]
fn a_node_and_a_service_are_an_address() {
    on_every_backend(async |net| {
        let domain = net.fabric_with(hints()).unwrap().domain().open().unwrap();
        let vector = domain.address_vector().open().unwrap();
        let addr = vector.insert_service("10.0.0.1", "7471").now().unwrap();
        assert_eq!(vector.lookup(addr).unwrap(), address(7471));
        let named = vector.insert_service("localhost", "7471").await.unwrap();
        assert_eq!(
            vector.lookup(named).unwrap(),
            SocketAddr::from(([127, 0, 0, 1], 7471))
        );
        let blocking = vector.insert_service("localhost", "7472").now();
        refused(blocking, ErrorKind::InvalidArgument);
        refused(
            vector.insert_service("10.0.0.1", "http").await,
            ErrorKind::InvalidArgument,
        );
        refused(
            vector.insert_service("10.0.0.1", None).await,
            ErrorKind::InvalidArgument,
        );
        refused(
            vector.insert_service("", "1").await,
            ErrorKind::InvalidArgument,
        );
    });
}

/// fi_av(3): "Applications may also pass in an FI_ADDR_STR formatted address as the node parameter.
/// In such cases, the service parameter must be NULL."
/// fi_av(3): "When using the FI_ADDR_STR format, the addr parameter should reference an array of
/// strings"
#[tokio::test]
async fn addresses_come_as_text_too() {
    let vector = open();
    let text = "fi_sockaddr_in://10.0.0.1:7";
    refused(
        vector.insert_service(text, "7").now(),
        ErrorKind::InvalidArgument,
    );
    let addr = vector.insert_service(text, None).now().unwrap();
    assert_eq!(vector.lookup(addr).unwrap(), address(7));
    let texts = [
        "fi_sockaddr://10.0.0.1:8",
        "nonsense",
        "fi_sockaddr_in://10.0.0.1:9",
    ];
    let results = vector.insert_texts(texts).now().unwrap();
    assert_eq!(indices(&results), [Some(1), None, Some(3)]);
    let error = results[1].as_ref().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("nonsense"), "{error}");
}

/// fi_av(3): "The fi_av_straddr function converts the provided address into a printable string."
/// fi_av(3): "the address itself is not required to have been inserted." `fi_av_straddr`.
#[tokio::test]
async fn an_address_is_shown_as_text_that_names_it_again() {
    let vector = open();
    assert_eq!(
        vector.straddr(address(7471)),
        "fi_sockaddr_in://10.0.0.1:7471"
    );
    let v6 = "[2001:db8::1]:7471".parse().unwrap();
    assert_eq!(vector.straddr(v6), "fi_sockaddr_in6://[2001:db8::1]:7471");
    let text = vector.straddr(address(7471));
    let added = vector.insert_texts([text.as_str()]).await.unwrap();
    let addr = *added[0].as_ref().unwrap();
    assert_eq!(vector.lookup(addr).unwrap(), address(7471));
}

/// fi_av(3): "10.1.1.1:5000, 10.1.1.1:5001, 10.1.1.2:5000, 10.1.1.2:5001."
/// fi_av(3): "Inserted transport addresses will be of the range {service, service + svccnt - 1},
/// inclusive."
/// fi_av(3): "Inserted node addresses will be of the range {node, node + nodecnt - 1}, inclusive."
/// fi_av(3): "All service addresses for a node will be inserted before the next node is inserted."
/// fi_av(3): "The total number of inserted addresses will be nodecnt x svccnt."
/// fi_av(3): `fi_av_insertsym`, function. `FI_SYMMETRIC`, flag.
#[tokio::test]
async fn a_symmetric_insertion_goes_node_by_node() {
    let builder = domain(hints()).address_vector();
    let builder = builder.symmetric().count(4).endpoints_per_node(2);
    let vector = builder.open().unwrap();
    assert!(vector.is_symmetric());
    let added = vector
        .insert_symmetric("10.1.1.1", 2, "5000", 2)
        .now()
        .unwrap();
    let shown: Vec<String> = added
        .into_iter()
        .map(|addr| vector.lookup(addr.unwrap()).unwrap().to_string())
        .collect();
    let wanted = [
        "10.1.1.1:5000",
        "10.1.1.1:5001",
        "10.1.1.2:5000",
        "10.1.1.2:5001",
    ];
    assert_eq!(shown, wanted);
    let beyond = vector.insert_symmetric("10.1.1.3", 1, "65535", 2).now();
    refused(beyond, ErrorKind::InvalidArgument);
    let huge = vector
        .insert_symmetric("10.1.1.3", usize::MAX, "1", usize::MAX)
        .now();
    refused(huge, ErrorKind::LimitReached);
}

/// An insertion that is dropped before its end leaves nothing behind.
#[tokio::test]
async fn an_insertion_that_is_dropped_is_undone() {
    let vector = open();
    drop(vector.insert_all([address(1), address(2)]).into_future());
    assert!(vector.is_empty());
    vector.insert(address(1)).await.unwrap();
}

/// fi_av(3): "fi_av_close will automatically cleanup any resources associated with addresses
/// remaining in the AV when it is invoked."
/// fi_av(3): `fi_close`, function. Afterwards no handle gives anything, and the domain can close.
#[tokio::test]
async fn a_closed_vector_frees_its_domain() {
    let domain = domain(hints());
    let vector = domain.address_vector().open().unwrap();
    let other = vector.clone();
    let addr = vector.insert(address(1)).now().unwrap();
    let busy = domain.close().await.unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    assert!(busy.to_string().contains("address vector"), "{busy}");
    vector.close().await.unwrap();
    vector.close().await.unwrap();
    refused(other.insert(address(2)).now(), ErrorKind::BadState);
    refused(other.insert(address(2)).await, ErrorKind::BadState);
    refused(other.remove(addr), ErrorKind::BadState);
    refused(other.lookup(addr), ErrorKind::BadState);
    domain.close().await.unwrap();
    refused(domain.address_vector().open(), ErrorKind::BadState);
}

/// Many tasks at a time, each with addresses of its own: every name stays with its address.
#[test]
fn handles_may_be_used_from_many_threads() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let vector = runtime.block_on(async { open() });
    std::thread::scope(|threads| {
        for thread in 0..4_u16 {
            let vector = vector.clone();
            threads.spawn(move || {
                for round in 0..200 {
                    let port = 1 + thread * 1000 + round;
                    let addr = vector.insert(address(port)).now().unwrap();
                    assert_eq!(vector.lookup(addr).unwrap(), address(port));
                    if round % 3 > 0 {
                        vector.remove(addr).unwrap();
                        assert!(vector.lookup(addr).is_err());
                    }
                }
            });
        }
    });
    assert_eq!(vector.len(), 4 * 67);
    let ports = vector
        .addresses()
        .into_iter()
        .map(|addr| vector.lookup(addr).unwrap().port());
    assert_eq!(
        ports.collect::<std::collections::HashSet<_>>().len(),
        4 * 67
    );
}
