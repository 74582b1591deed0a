//! XML as xml2lua makes tables of it for APISIX.

use super::*;

fn xml(template: &str, body: &str) -> Result<String, (u16, String)> {
    request(json!({"input_format": "xml", "template": template}), &[], body.as_bytes())
}

#[test]
fn elements_are_texts_or_tables() {
    for (template, body, expected) in [
        ("{*r*}", "<r>&lt;&gt;&quot;&apos;&amp;&#65;</r>", "<>\"'&A"),
        ("{*r._attr.a*}|{*r._attr.b*}", "<r x:a=\"1&lt;2 &amp; 3&gt;2\" b='&#x42;'/>", "1<2 & 3>2|B"),
        ("{{r.a[1]}} {{r.a._attr.k}}", "<r><a k=\"v\">t</a></r>", "t v"),
        ("{{r.a._attr.k}}{{#r.a}}", "<r><a k=\"v\"/></r>", "v0"),
        ("{{r[1]}} {{r[2]}} {{r.b}}|", "<r> one <b/> two </r>", "one two |"),
        ("{{#r.a}} {{r.a[1]}} {{r.a[2].b}}", "<r><a>1</a><a><b>2</b></a></r>", "2 1 2"),
        ("{{r}}", "<r>one<!-- and -->two</r>", "table: 0x0"),
        ("{{r[1]}}|{{r[2]}}", "<r>one<!-- and -->two</r>", "one|two"),
        ("{*_escape_json(r)*}", "<r>a<![CDATA[b]]>&amp;c</r>", "\"ab&c\""),
    ] {
        assert_eq!(xml(template, body).unwrap(), expected, "{body}");
    }
    for bad in
        ["<r a=\"&lt\"/>", "<r a=\"&own;\"/>", "<r>&#x110000;</r>", "<r a=1/>", "<r></r", "</r>", "<r/></r>"]
    {
        assert_eq!(xml("x", bad).unwrap_err().0, 400, "{bad}");
    }
}

#[test]
fn elements_stand_in_each_other_so_deep_only() {
    let nested = |depth: usize| format!("{}x{}", "<a>".repeat(depth), "</a>".repeat(depth));
    assert_eq!(xml("{{type(a)}}", &nested(128)).unwrap(), "table");
    assert!(xml("", &nested(129)).unwrap_err().1.contains("too deep"));
}

/// The memory that the tables of a body could need is taken from the budget before it is read.
#[test]
fn elements_and_texts_are_paid_for() {
    let read = |body: &str| {
        let mut probe = Probe::request("POST", "/", &[]);
        probe.world.budget = sdk::budget::Budget::new(100_000);
        let stage: BodyTransformer =
            probe.stage(json!({"request": {"input_format": "xml", "template": "x"}})).unwrap();
        let mut x = probe.exchange();
        with_body(&mut x, body.as_bytes());
        matches!(rewrite(&stage, &mut x), Step::Next)
    };
    assert!(read(&format!("<r>{}</r>", "<a/>".repeat(150))));
    assert!(!read(&format!("<r>{}</r>", "<a/>".repeat(250))));
    assert!(read(&format!("<r>{}</r>", "x".repeat(30_000))));
    assert!(!read(&format!("<r>{}</r>", "x".repeat(60_000))));
}
