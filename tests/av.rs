//! Address vectors (`fi_av(3)`).

mod common;

use std::net::SocketAddr;

use common::on_every_backend;
use tokio_fabric::testing::Net;
use tokio_fabric::*;

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

fn open(net: &Net) -> AddressVector {
    let domain = net.fabric().unwrap().domain().open().unwrap();
    domain.address_vector().open().unwrap()
}

/// fi_av(3): "This call returns the address stored in the address vector that corresponds to the
/// given fi_addr."
#[test]
fn an_inserted_address_is_looked_up_by_its_name() {
    on_every_backend(async |net| {
        let vector = open(&net);
        let addr = vector.insert(address(1)).now().unwrap();
        let other = vector.insert(address(2)).user_id(9).now().unwrap();
        assert_eq!(vector.lookup(addr).unwrap(), address(1));
        assert_eq!(vector.lookup(other).unwrap(), address(2));
        assert_eq!(vector.fabric_addr(address(2)), Some(other));
        assert_eq!(vector.user_id(other).unwrap(), Some(9));
    });
}

/// fi_av(3): "The removed address - either the mapped address (in the case of FI_AV_MAP) or index
/// (FI_AV_TABLE) - is invalid until it is returned again by a new fi_av_insert."
#[test]
fn a_removed_address_never_names_a_new_peer() {
    on_every_backend(async |net| {
        let vector = open(&net);
        let old = vector.insert(address(1)).now().unwrap();
        vector.remove(old).unwrap();
        let new = vector.insert(address(2)).now().unwrap();
        assert_eq!(new.index(), old.index());
        for refused in [vector.lookup(old).map(drop), vector.remove(old)] {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
        assert_eq!(vector.fabric_addr(address(1)), None);
        assert_eq!(vector.lookup(new).unwrap(), address(2));
    });
}
