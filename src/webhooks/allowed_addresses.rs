//! The addresses at which a target may be reached. Without `private`, only global unicast; with it also private
//! networks and this machine, but never link-local addresses and the metadata services of clouds.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

/// The addresses that a target allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AddressPolicy {
    /// Allows private networks and this machine.
    pub private: bool,
    /// Allows this machine only, whatever else is allowed: plain HTTP without `insecure`.
    pub loopback_only: bool,
}

/// Why an address was refused: the name of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused(pub &'static str);

const NOT_GLOBAL: Refused = Refused("the address is not global unicast, and the target has no `private = true`");
const NEVER: Refused = Refused("the address is link-local, multicast, or a metadata service, which no target may be");
const NOT_LOOPBACK: Refused = Refused("http leads to another machine, and the target has no `insecure = true`");

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

const fn v6(a: u16, b: u16, h: u16, prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, 0, 0, 0, 0, 0, h), prefix)
}

/// Networks that are refused even with `private`. The single addresses are metadata services and host agents of clouds.
const NEVER_V4: [Ipv4Net; 6] = [
    v4(0, 0, 0, 0, 8),
    v4(169, 254, 0, 0, 16),
    v4(224, 0, 0, 0, 3),
    v4(100, 100, 100, 200, 32),
    v4(168, 63, 129, 16, 32),
    v4(192, 0, 0, 192, 32),
];
/// Private, special or documentation: IANA's registry of special-purpose addresses.
const SPECIAL_V4: [Ipv4Net; 11] = [
    v4(10, 0, 0, 0, 8),
    v4(100, 64, 0, 0, 10),
    v4(127, 0, 0, 0, 8),
    v4(172, 16, 0, 0, 12),
    v4(192, 0, 0, 0, 24),
    v4(192, 0, 2, 0, 24),
    v4(192, 88, 99, 0, 24),
    v4(192, 168, 0, 0, 16),
    v4(198, 18, 0, 0, 15),
    v4(198, 51, 100, 0, 24),
    v4(203, 0, 113, 0, 24),
];
/// All of global unicast; its special parts follow.
const GLOBAL_V6: Ipv6Net = v6(0x2000, 0, 0, 3);
/// Protocol assignments with Teredo, documentation, 6to4 (which contains an IPv4 address), documentation.
const SPECIAL_V6: [Ipv6Net; 4] =
    [v6(0x2001, 0, 0, 23), v6(0x2001, 0xdb8, 0, 32), v6(0x2002, 0, 0, 16), v6(0x3fff, 0, 0, 20)];
/// Private: unique local addresses and this machine. `fd00:ec2::254` is a metadata service.
const PRIVATE_V6: [Ipv6Net; 2] = [v6(0xfc00, 0, 0, 7), v6(0, 0, 1, 128)];
const METADATA_V6: Ipv6Net = v6(0xfd00, 0xec2, 0x254, 128);

/// Whether a connection to this address is allowed. An IPv4 address within an IPv6 address is checked as IPv4.
///
/// Errors: the rule that refuses the address.
pub fn check(address: IpAddr, policy: AddressPolicy) -> Result<(), Refused> {
    let address = address.to_canonical();
    let (is_never, is_global, is_private) = match address {
        IpAddr::V4(v4) => {
            let special = SPECIAL_V4.iter().any(|net| net.contains(&v4));
            (NEVER_V4.iter().any(|net| net.contains(&v4)), !special, special)
        }
        IpAddr::V6(v6) => {
            let is_private = PRIVATE_V6.iter().any(|net| net.contains(&v6));
            let is_global = GLOBAL_V6.contains(&v6) && !SPECIAL_V6.iter().any(|net| net.contains(&v6));
            (METADATA_V6.contains(&v6) || !(is_private || GLOBAL_V6.contains(&v6)), is_global, is_private)
        }
    };
    match () {
        () if is_never => Err(NEVER),
        () if policy.loopback_only && !address.is_loopback() => Err(NOT_LOOPBACK),
        () if is_global || (policy.private && is_private) => Ok(()),
        () => Err(NOT_GLOBAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLIC: AddressPolicy = AddressPolicy { private: false, loopback_only: false };
    const PRIVATE: AddressPolicy = AddressPolicy { private: true, loopback_only: false };
    const LOOPBACK: AddressPolicy = AddressPolicy { private: true, loopback_only: true };

    fn is_allowed(address: &str, policy: AddressPolicy) -> bool {
        check(address.parse().expect(address), policy).is_ok()
    }

    #[test]
    fn global_unicast_is_allowed() {
        for address in ["1.1.1.1", "172.15.0.1", "172.32.0.1", "100.63.0.1", "2606:4700::1111", "::ffff:1.1.1.1"] {
            assert!(is_allowed(address, PUBLIC) && is_allowed(address, PRIVATE), "{address}");
            assert!(!is_allowed(address, LOOPBACK), "{address}");
        }
    }

    #[test]
    fn private_addresses_need_a_word_of_the_administrator_mapped_ones_too() {
        for address in [
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "198.18.0.1",
            "fd12::1",
            "fc00::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:7f00:1",
        ] {
            assert_eq!(check(address.parse().expect(address), PUBLIC), Err(NOT_GLOBAL), "{address}");
            assert!(is_allowed(address, PRIVATE), "{address}");
        }
        for (address, is_loopback) in
            [("127.0.0.1", true), ("::1", true), ("::ffff:127.0.0.1", true), ("10.0.0.1", false)]
        {
            assert_eq!(is_allowed(address, LOOPBACK), is_loopback, "{address}");
        }
    }

    #[test]
    fn link_local_addresses_and_metadata_services_are_never_allowed() {
        for address in [
            "169.254.169.254",
            "::ffff:169.254.169.254",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "224.0.0.1",
            "239.1.1.1",
            "255.255.255.255",
            "0.0.0.0",
            "0.1.2.3",
            "::",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "::127.0.0.1",
            "100::1",
        ] {
            for policy in [PUBLIC, PRIVATE, LOOPBACK] {
                assert_eq!(check(address.parse().expect(address), policy), Err(NEVER), "{address}");
            }
        }
    }

    /// Teredo and 6to4 carry IPv4 addresses, which would be reached through a relay.
    #[test]
    fn special_parts_of_global_unicast_are_not_global() {
        for address in
            ["2001::1", "2001:db8::1", "2002:7f00:1::1", "2002:a9fe:a9fe::1", "3fff::1", "203.0.113.7", "192.0.2.1"]
        {
            assert!(!is_allowed(address, PUBLIC), "{address}");
        }
        assert!(!is_allowed("2002:7f00:1::1", PRIVATE) && !is_allowed("2001::1", PRIVATE));
    }
}
