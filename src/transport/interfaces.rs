//! The network interfaces of this machine, as plain values.

use std::net::IpAddr;

use if_addrs::IfAddr;

use crate::error::{Error, Result};

/// One address of one network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NetworkInterface {
    /// The system's name for the interface, such as "eth0".
    pub(crate) name: String,
    /// The system's number for the interface: the scope of link-local IPv6 addresses.
    pub(crate) index: Option<u32>,
    pub(crate) ip: IpAddr,
    /// Number of leading bits of `ip` that identify its network.
    pub(crate) prefix: u8,
    pub(crate) loopback: bool,
    /// True if the interface is up and has a carrier.
    pub(crate) running: bool,
    /// Speed in bits per second; `None` if the interface does not report it (loopback, most virtual
    /// ones).
    pub(crate) speed: Option<u64>,
    /// Size of the largest packet in bytes, if the system reports it.
    pub(crate) mtu: Option<u32>,
}

/// Returns all addresses of all interfaces, in the system's order.
pub(crate) fn interfaces() -> Result<Vec<NetworkInterface>> {
    let found = if_addrs::get_if_addrs()
        .map_err(|error| Error::from_io(&error, "listing network interfaces"))?;
    Ok(found
        .into_iter()
        .map(|found| NetworkInterface {
            speed: speed(&found.name),
            mtu: mtu(&found.name),
            index: found.index,
            ip: found.ip(),
            prefix: match &found.addr {
                IfAddr::V4(address) => address.prefixlen,
                IfAddr::V6(address) => address.prefixlen,
            },
            loopback: found.is_loopback(),
            running: found.is_oper_up(),
            name: found.name,
        })
        .collect())
}

fn mtu(name: &str) -> Option<u32> {
    let device = name.split(':').next().unwrap_or(name);
    let text = std::fs::read_to_string(format!("/sys/class/net/{device}/mtu")).ok()?;
    text.trim().parse().ok()
}

/// Returns the interface's speed in bits per second. The network driver reports megabits per
/// second, and an error or -1 if it does not know.
fn speed(name: &str) -> Option<u64> {
    // An alias ("eth0:1") has the speed of its device.
    let device = name.split(':').next().unwrap_or(name);
    let text = std::fs::read_to_string(format!("/sys/class/net/{device}/speed")).ok()?;
    let megabits: u64 = text.trim().parse().ok()?;
    (megabits > 0).then(|| megabits.saturating_mul(1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_there_and_has_no_speed() {
        let all = interfaces().unwrap();
        let lo = all.iter().find(|at| at.loopback).expect("a loopback");
        assert!(lo.ip.is_loopback());
        assert!(lo.prefix > 0);
        assert_eq!(lo.speed, None);
        assert!(lo.mtu.is_some_and(|mtu| mtu >= 1500));
    }

    #[test]
    fn an_interface_that_is_not_there_has_no_speed() {
        assert_eq!(speed("no-such-interface"), None);
    }
}
