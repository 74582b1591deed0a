//! Lookups that are kept while conditions are evaluated.

use super::*;

#[test]
fn cached_lookups_equal_uncached_ones() {
    for pad in [0, 400] {
        let of = |sep: &str, more: &str| format!("n=1{sep}{}{more}", format!("pad=x{sep}").repeat(pad));
        let query = of("&", "bare&e=&x=%41+b&y=plain&x=2&%6e=3");
        let form = of("&", "bare&e=&x=%42+b&y=form&z=1");
        let cookies = [of("; ", "x=first; y=\"c d\"; e="), of("; ", "x=last%41")];
        let mut probe = Probe::request(
            "POST",
            &format!("/a?{query}"),
            &[
                ("Host", "h"),
                ("Content-Type", "application/x-www-form-urlencoded"),
                ("Cookie", &cookies[0]),
                ("Cookie", &cookies[1]),
            ],
        );
        let mut x = probe.exchange();
        with_body(&mut x, form.as_bytes());
        // More names than the cache holds.
        let names = ["n", "bare", "e", "x", "y", "z", "none", "pad"];
        let vars: Vec<Var> = ["arg_", "cookie_", "post_arg_"]
            .iter()
            .flat_map(|place| names.iter().map(move |name| Var::parse(&format!("{place}{name}"))))
            .collect();
        let read = |x: &Exchange<'_>| -> Vec<_> {
            let owned = |value: Value<'_>| value.into_owned();
            vars.iter().map(|var| (var.value(x).map(owned), var.judge(x).map(|v| v.map(owned)))).collect()
        };
        let alone = read(&x);
        let values =
            [&alone[3].0, &alone[11].0, &alone[19].0].map(|value| value.clone().unwrap().into_text());
        assert_eq!(values, [b"A b", &b"last%41"[..], b"B b"]);
        let together = reading(&mut x, |x| [read(x), read(x)]);
        assert_eq!(together, [alone.clone(), alone]);
        x.set_query(b"x=new");
        assert_eq!(text(&x, "arg_x").as_deref(), Some("new"), "changes after the conditions are visible");
    }
}

/// Long texts of a request are scanned once per name while conditions are evaluated, and short ones
/// each time.
#[test]
fn a_long_request_is_scanned_once_per_name() {
    for (pad, expected) in [(0, 6), (400, 2)] {
        let mut probe = Probe::get(&format!("/?a=1&b=2{}", "&pad=x".repeat(pad)));
        let mut x = probe.exchange();
        let [a, b] = ["arg_a", "arg_b"].map(Var::parse);
        crate::testing::SCANS.set(0);
        reading(&mut x, |x| {
            for _ in 0..3 {
                let texts = [&a, &b].map(|var| var.value(x).map(|value| value.into_text().into_owned()));
                assert_eq!(texts, [Some(b"1".to_vec()), Some(b"2".to_vec())]);
            }
        });
        assert_eq!(crate::testing::SCANS.get(), expected, "with {pad} further arguments");
    }
}
