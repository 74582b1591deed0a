//! Consistent hashing: the ring, the keys and the servers they belong to.

use sdk::template::Template;

use super::*;

#[test]
fn hashing_is_stable_and_fair() {
    let upstream = upstream(&[1, 1, 2], chash());
    let mut keys = [0; 3];
    for addr in owners(&upstream, 0..20_000, &tried(&[])) {
        keys[upstream.endpoints.iter().position(|e| Some(e.addr) == addr).expect("a known server")] += 1;
    }
    for (keys, fair) in keys.into_iter().zip([5_000.0, 5_000.0, 10_000.0]) {
        assert!((f64::from(keys) / fair - 1.0).abs() < 0.2, "{keys} of {fair}");
    }
}

/// Recorded from lua-resty-balancer 0.05, which APISIX 3.18 calls: the ring's size, its first
/// points, and the servers of these keys.
#[test]
fn the_ring_is_that_of_apisix() {
    const KEYS: [&str; 10] =
        ["127.0.0.1", "jack", "tom", "custom-one", "cuscookie", "", "key-0", "key-1", "key-2", "key-3"];
    type Recorded = (&'static [(&'static str, u32)], usize, [(u32, u32); 3], [u32; 10]);
    let recorded: [Recorded; 4] = [
        (
            &[("127.0.0.1:1980", 1), ("127.0.0.1:1981", 1)],
            320,
            [(4_676_813, 0), (4_707_425, 0), (11_007_670, 1)],
            [0, 1, 0, 0, 1, 0, 0, 0, 1, 1],
        ),
        (
            &[("127.0.0.1:1980", 1), ("127.0.0.1:1981", 1), ("127.0.0.1:1982", 1)],
            480,
            [(3_619_986, 2), (4_676_813, 0), (4_707_425, 0)],
            [2, 1, 0, 0, 1, 2, 2, 2, 2, 2],
        ),
        // 1, 2 and 3 units.
        (
            &[("10.0.0.1:80", 3), ("10.0.0.2:80", 6), ("10.0.0.3:8080", 9)],
            960,
            [(3_751_338, 0), (6_728_359, 2), (10_255_997, 2)],
            [1, 1, 0, 2, 2, 0, 1, 2, 1, 1],
        ),
        (
            &[("[::1]:80", 1), ("[2001:db8::1]:80", 2)],
            480,
            [(9_493_754, 1), (10_718_788, 0), (37_027_071, 1)],
            [1, 1, 1, 1, 1, 1, 0, 0, 1, 1],
        ),
    ];
    for (servers, size, first, owners) in recorded {
        let endpoint = |&(addr, weight): &(&str, u32)| Endpoint {
            addr: addr.parse().expect("an address"),
            authority: addr.strip_suffix(":80").unwrap_or(addr).into(),
            weight,
            priority: 0,
        };
        let upstream = Upstream::new("1", 0, servers.iter().map(endpoint).collect(), chash());
        assert_eq!(upstream.rings[0].points().len(), size);
        assert_eq!(upstream.rings[0].points()[..3], first);
        for (key, owner) in KEYS.into_iter().zip(owners) {
            let mut probe = Probe::default();
            assert!(probe.exchange().set_header("k", key.as_bytes()).is_ok());
            let mut upstream = upstream.clone();
            upstream.settings_mut().policy = Policy::Chash(HashOn::Var(Var::parse("http_k")));
            let found = upstream.pick(&mut upstream.state(), &probe.exchange(), &tried(&[]), 0);
            assert_eq!(found, Some(owner as usize), "{key} of {servers:?}");
        }
    }
}

#[test]
fn a_duplicate_address_is_on_the_ring_once_with_its_last_weight() {
    let mut twice = servers(&[(5, 0), (2, 0), (1, 0)]);
    twice[2] = Endpoint { weight: 1, ..twice[0].clone() };
    let twice = Upstream::new("1", 0, twice, chash());
    let mut once = servers(&[(1, 0), (2, 0)]);
    once.rotate_left(1);
    let once = Upstream::new("1", 0, once, chash());
    assert_eq!(twice.rings[0].points().len(), 480);
    assert_eq!(owners(&twice, 0..200, &tried(&[])), owners(&once, 0..200, &tried(&[])));
}

/// A ring knows an address as the operator wrote it, as APISIX does.
#[test]
fn an_ipv6_address_is_hashed_as_configured() {
    let ring = |authority: &str| {
        let mut one = servers(&[(1, 0)]);
        one[0].addr = "[2001:db8::1]:80".parse().expect("an address");
        one[0].authority = authority.into();
        Upstream::new("1", 0, one, chash()).rings.clone()
    };
    assert_eq!(ring("[2001:db8::1]"), ring("node.test"));
    assert_eq!(ring("[2001:db8::1]"), ring("[2001:db8::1]:80"));
    assert_ne!(ring("[2001:db8::1]"), ring("[2001:DB8::1]"));
}

#[test]
fn only_keys_of_removed_servers_move() {
    let before = upstream(&[1, 1, 1, 1], chash());
    let after = Upstream::new("1", 0, servers(&[(1, 0); 3]), chash());
    let gone = before.endpoints[3].addr;
    let mut moved = 0;
    let both = [&before, &after].map(|upstream| owners(upstream, 0..4_000, &tried(&[])));
    for (old, new) in both[0].iter().copied().zip(both[1].iter().copied()) {
        assert!(old == new || old == Some(gone));
        moved += u32::from(old != new);
    }
    assert!((700..1_300).contains(&moved), "{moved}");
}

#[test]
fn a_huge_weight_does_not_make_a_huge_ring() {
    let upstream = upstream(&[u32::MAX, 1_000_000, 1], chash());
    let format = format!("{:?}", upstream.rings);
    let points: u64 = format.trim_matches(|c: char| !c.is_ascii_digit()).parse().expect("a number");
    assert!(points <= 2 << 20, "{format}");
    assert!(owner(&upstream, 1, &tried(&[0, 1])).is_some());
}

#[test]
fn the_hash_key_falls_back_to_the_client_address() {
    let key = |on: HashOn, target: &str, ip: &str| {
        let mut probe = Probe::get(target).from_ip(ip);
        let hash = on.hash(&probe.exchange(), &mut Vec::new());
        assert_eq!(crc32fast::hash(&on.key(&probe.exchange())), hash, "the explained key is the hashed key");
        hash
    };
    let var = || HashOn::Var(Var::parse("arg_k"));
    let both = || HashOn::Combination(Template::parse("$arg_k-$arg_l"));
    let address = key(HashOn::Var(Var::parse("remote_addr")), "/", "10.1.1.1");
    assert_eq!(key(var(), "/", "10.1.1.1"), address);
    assert_eq!(key(both(), "/", "10.1.1.1"), address);
    assert_eq!(key(HashOn::Consumer, "/", "10.1.1.1"), address);
    assert_ne!(key(var(), "/?k=1", "10.1.1.1"), address);
    assert_eq!(key(var(), "/?k=1", "10.1.1.1"), key(var(), "/?k=1", "10.1.1.2"));
    assert_eq!(key(both(), "/?k=1&l=2", "10.1.1.1"), key(var(), "/?k=1-2", "10.1.1.2"));
}

#[test]
fn a_key_belongs_to_the_first_point_at_or_after_it() {
    let upstream = upstream(&[1, 2, 1], chash());
    let (ring, none) = (&upstream.rings[0], tried(&[]));
    let choice = Choice { endpoints: &upstream.endpoints, tried: &none };
    let server = |point: &(u32, u32)| Some(point.1 as usize);
    for pair in ring.points().windows(2).filter(|pair| pair[0].0 != pair[1].0) {
        assert_eq!(ring.pick(pair[1].0, choice), server(&pair[1]), "at it");
        assert_eq!(ring.pick(pair[0].0 + 1, choice), server(&pair[1]), "before it");
    }
    assert!(ring.points().last().is_some_and(|point| point.0 < u32::MAX));
    assert_eq!(ring.pick(u32::MAX, choice), server(&ring.points()[0]), "behind the last comes the first");
}

#[test]
fn a_long_hash_key_is_released() {
    let on = HashOn::Var(Var::parse("http_k"));
    let mut bytes = Vec::new();
    for length in [100, 100_000] {
        let mut probe = Probe::default();
        let mut x = probe.exchange();
        x.set_header("k", &vec![b'x'; length]).expect("a header");
        assert_eq!(on.hash(&x, &mut bytes), crc32fast::hash(&vec![b'x'; length]));
        assert!(bytes.capacity() <= 1024, "{length}");
        let long = vec![b'x'; length];
        let others = [(long.into(), tried(&[1]))].into_iter().collect();
        let subset = Subset { on: Var::parse("http_k"), others, required: true };
        assert_eq!(subset.excluded_by(&x, &mut bytes), Some(&tried(&[1])));
        assert!(bytes.capacity() <= 1024, "{length}");
    }
}
