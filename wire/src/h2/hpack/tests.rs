//! The examples of RFC 7541, and what both sides refuse.

use super::fixed::FIELDS;
use super::*;
use crate::List;
use crate::field_list::Bad;
use crate::names::Name;

type Texts = Vec<(String, String)>;

fn texts(list: &List) -> Texts {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    for (name, _, id) in list.iter() {
        assert_eq!(id, Name::from_bytes(name));
    }
    list.iter().map(|(name, value, _)| (text(name), text(value))).collect()
}

fn limited(decoder: &mut Decoder, block: &[u8], bytes: usize, fields: usize) -> Result<Texts, Bad> {
    let mut list = List::default();
    let done = decoder.decode(block, &mut list, bytes, fields);
    assert!(done.is_ok() || list.is_empty());
    done.map(|()| texts(&list))
}

fn read(decoder: &mut Decoder, block: &[u8]) -> Result<Texts, Bad> {
    limited(decoder, block, 1 << 16, 1000)
}

fn alone(block: &[u8]) -> Result<Texts, Bad> {
    read(&mut Decoder::new(DEFAULT_TABLE_SIZE), block)
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b' ').collect();
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// Lines of `name: value`.
fn listed(text: &str) -> Texts {
    let field = |line: &str| line.trim().rsplit_once(": ").map(|(name, value)| (name.into(), value.into()));
    text.lines().filter_map(field).collect()
}

/// Decodes blocks in order, each with its fields and the size of the table after it.
fn follow(limit: usize, blocks: [(&str, &str, usize); 3]) {
    let mut decoder = Decoder::new(limit);
    for (block, fields, size) in blocks {
        assert_eq!(read(&mut decoder, &hex(block)), Ok(listed(fields)), "{block}");
        assert_eq!(decoder.table_size(), size, "{block}");
    }
}

#[test]
fn each_representation_is_read() {
    // RFC 7541 appendix C.2.
    for (block, field, size) in [
        ("400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572", "custom-key: custom-header", 55),
        ("040c 2f73 616d 706c 652f 7061 7468", ":path: /sample/path", 0),
        ("1008 7061 7373 776f 7264 0673 6563 7265 74", "password: secret", 0),
        ("82", ":method: GET", 0),
    ] {
        let mut decoder = Decoder::new(DEFAULT_TABLE_SIZE);
        assert_eq!(read(&mut decoder, &hex(block)), Ok(listed(field)));
        assert_eq!(decoder.table_size(), size);
    }
}

const FIRST_REQUEST: &str = ":method: GET\n:scheme: http\n:path: /\n:authority: www.example.com";
const SECOND_REQUEST: &str =
    ":method: GET\n:scheme: http\n:path: /\n:authority: www.example.com\ncache-control: no-cache";
const THIRD_REQUEST: &str = ":method: GET\n:scheme: https\n:path: /index.html
    :authority: www.example.com\ncustom-key: custom-value";

#[test]
fn requests_without_huffman_coding() {
    // RFC 7541 appendix C.3.
    let third = "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65";
    follow(
        DEFAULT_TABLE_SIZE,
        [
            ("8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d", FIRST_REQUEST, 57),
            ("8286 84be 5808 6e6f 2d63 6163 6865", SECOND_REQUEST, 110),
            (third, THIRD_REQUEST, 164),
        ],
    );
}

#[test]
fn requests_with_huffman_coding() {
    // RFC 7541 appendix C.4.
    follow(
        DEFAULT_TABLE_SIZE,
        [
            ("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff", FIRST_REQUEST, 57),
            ("8286 84be 5886 a8eb 1064 9cbf", SECOND_REQUEST, 110),
            ("8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf", THIRD_REQUEST, 164),
        ],
    );
}

const FIRST_RESPONSE: &str = ":status: 302\ncache-control: private
    date: Mon, 21 Oct 2013 20:13:21 GMT\nlocation: https://www.example.com";
const SECOND_RESPONSE: &str = ":status: 307\ncache-control: private
    date: Mon, 21 Oct 2013 20:13:21 GMT\nlocation: https://www.example.com";
const THIRD_RESPONSE: &str = ":status: 200\ncache-control: private
    date: Mon, 21 Oct 2013 20:13:22 GMT\nlocation: https://www.example.com\ncontent-encoding: gzip
    set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1";

#[test]
fn responses_without_huffman_coding_evict_entries() {
    // RFC 7541 appendix C.5.
    let first = "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032
        303a 3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d"
        .replace('\n', "");
    let third = "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0
        5a04 677a 6970 7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49
        553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e 3d31"
        .replace('\n', "");
    let blocks = [
        (&first[..], FIRST_RESPONSE, 222),
        ("4803 3330 37c1 c0bf", SECOND_RESPONSE, 222),
        (&third, THIRD_RESPONSE, 215),
    ];
    follow(256, blocks);
}

#[test]
fn responses_with_huffman_coding_evict_entries() {
    // RFC 7541 appendix C.6.
    let first = "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e
        919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3"
        .replace('\n', "");
    let third = "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7
        821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106
        3d50 07"
        .replace('\n', "");
    let blocks = [
        (&first[..], FIRST_RESPONSE, 222),
        ("4883 640e ffc1 c0bf", SECOND_RESPONSE, 222),
        (&third, THIRD_RESPONSE, 215),
    ];
    follow(256, blocks);
}

#[test]
fn invalid_blocks_are_refused() {
    for block in [
        &b"\x80"[..],                    // index 0
        b"\xbe",                         // the first entry of an empty table
        b"\xff\x80\x80\x80\x80\x80\x01", // an index in too many bytes
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\xff",                     // half an index
        b"\x7f\x00\x01x",            // a name that is absent
        b"\x0f\x2f\x01x",            // as well
        b"\x40",                     // no name
        b"\x40\x01a",                // no value
        b"\x40\x02a",                // half a name
        b"\x40\x01a\x02b",           // half a value
        b"\x41\x81\x1e",             // a zero in the padding
        b"\x41\x82\x1f\xff",         // a byte of padding
        b"\x41\x84\xff\xff\xff\xfc", // the end of a string
        b"\x82\x20",                 // a change of the size behind a field
        b"\x3f\xe2\x1f",             // a size of 4097
    ] {
        assert_eq!(alone(block), Err(Bad::Coding), "{block:x?}");
    }
    assert_eq!(alone(b""), Ok(Vec::new()));
    assert_eq!(alone(b"\x3f\xe1\x1f\x20\x3f\xe1\x1f"), Ok(Vec::new()), "sizes up to 4096");
    assert_eq!(alone(b"\x41\x81\x1f"), Ok(listed(":authority: a")));
}

#[test]
fn the_table_keeps_to_its_size() {
    let mut decoder = Decoder::new(100);
    // 34 bytes each, of which two fit.
    read(&mut decoder, b"\x40\x01a\x01b\x40\x01c\x01d").unwrap();
    assert_eq!(decoder.table_size(), 68);
    assert_eq!(read(&mut decoder, b"\xbf\x40\x01e\x01f\xbf").unwrap(), listed("a: b\ne: f\nc: d"));
    assert_eq!(read(&mut decoder, b"\xc0"), Err(Bad::Coding), "evicted");
    // A name of an entry that its own insertion evicts.
    assert_eq!(read(&mut decoder, b"\x7f\x00\x01x").unwrap(), listed("c: x"));
    assert_eq!(read(&mut decoder, b"\xbe\xbf").unwrap(), listed("c: x\ne: f"));
    // A size of 34, then of 100 again.
    assert_eq!(read(&mut decoder, b"\x3f\x03\x3f\x45\xbe").unwrap(), listed("c: x"));
    assert_eq!(read(&mut decoder, b"\xbf"), Err(Bad::Coding));
    // An entry that exceeds the table empties it, and is a field nevertheless.
    let large = [&b"\x40\x01a\x45"[..], &[b'b'; 69]].concat();
    assert_eq!(read(&mut decoder, &large).unwrap()[0].1.len(), 69);
    assert_eq!(decoder.table_size(), 0);
    assert_eq!(read(&mut decoder, b"\xbe"), Err(Bad::Coding));
    // An announced size of 0.
    let mut none = Decoder::new(0);
    assert_eq!(read(&mut none, b"\x20\x40\x01a\x01b").unwrap(), listed("a: b"));
    assert_eq!(read(&mut none, b"\xbe"), Err(Bad::Coding));
    assert_eq!(read(&mut none, b"\x21"), Err(Bad::Coding));
}

#[test]
fn a_refused_block_changes_the_table_nevertheless() {
    let five = b"\x40\x01a\x01b\x40\x01c\x81\x1f\x40\x01e\x01f\x82\x40\x01g\x01h";
    for (bytes, fields, bad) in [(4, 100, Bad::TooLarge), (1000, 1, Bad::TooMany), (0, 0, Bad::TooLarge)] {
        let mut decoder = Decoder::new(DEFAULT_TABLE_SIZE);
        let mut whole = Decoder::new(DEFAULT_TABLE_SIZE);
        assert_eq!(read(&mut whole, five).map(|fields| fields.len()), Ok(5));
        assert_eq!(limited(&mut decoder, five, bytes, fields), Err(bad));
        assert_eq!(decoder.table_size(), whole.table_size());
        let expected = listed("a: b\nc: a\ne: f\ng: h");
        assert_eq!(read(&mut decoder, b"\xc1\xc0\xbf\xbe"), Ok(expected));
    }
    // Errors behind the limit count.
    let mut decoder = Decoder::new(DEFAULT_TABLE_SIZE);
    assert_eq!(limited(&mut decoder, b"\x82\x82\x80", 1000, 1), Err(Bad::Coding));
}

#[test]
fn few_bytes_that_expand_to_many_are_bounded() {
    // An entry of 3 KiB, which each further byte repeats.
    let mut block = vec![0x40, 0x7f, 0x81, 0x17];
    block.extend([b'a'; 3072]);
    block.push(0);
    block.extend([0xbe; 60_000]);
    let mut decoder = Decoder::new(DEFAULT_TABLE_SIZE);
    let mut list = List::default();
    assert_eq!(decoder.decode(&block, &mut list, 1 << 16, 1000), Err(Bad::TooLarge));
    assert!(list.text.capacity() <= 8 << 10, "{}", list.text.capacity());
    assert_eq!(read(&mut decoder, b"\xbe").unwrap()[0].0.len(), 3072);
    // A name that each two bytes copy ends the connection.
    let names = [0x0f, 0x2f, 0].repeat(30_000);
    assert_eq!(limited(&mut decoder, &names, 1 << 16, 1000), Err(Bad::Coding));
}

#[test]
fn names_and_values_are_clean_or_not() {
    for (name, value, is_clean) in [
        ("a", "b", true),
        (":a", "", true),
        ("x_a!1", "b\tc \u{e9}", true),
        ("server", "b", true),
        ("", "b", false),
        (":", "b", false),
        ("a:", "b", false),
        ("::a", "b", false),
        ("A", "b", false),
        ("Server", "b", false),
        ("a b", "b", false),
        ("a", " b", false),
        ("a", "b\t", false),
        ("a", "b\nc", false),
        ("a", "b\0", false),
        ("a", "\x7f", false),
    ] {
        let (mut decoder, mut list) = (Decoder::new(DEFAULT_TABLE_SIZE), List::default());
        for form in [0, 0x40] {
            let length = |text: &str| text.len() as u8;
            let pieces = [&[form, length(name)], name.as_bytes(), &[length(value)], value.as_bytes()];
            decoder.decode(&pieces.concat(), &mut list, 1000, 10).unwrap();
            assert_eq!(list.is_clean(), is_clean, "{name:?}: {value:?}");
        }
        // From the table, and among others.
        for block in [&b"\xbe"[..], b"\x82\xbe\x84"] {
            decoder.decode(block, &mut list, 1000, 10).unwrap();
            assert_eq!(list.is_clean(), is_clean, "{name:?}: {value:?}");
        }
        decoder.decode(b"\x82\x41\x01a", &mut list, 1000, 10).unwrap();
        assert!(list.is_clean());
        decoder.decode(b"\x82\x41\x02a\n", &mut list, 1000, 10).unwrap();
        assert!(!list.is_clean(), "a name of the static table");
    }
}

#[test]
fn values_that_repeat_are_indexed() {
    let mut encoder = Encoder::new();
    let mut sizes = Vec::new();
    for _ in 0..4 {
        let mut out = Vec::new();
        encoder.begin(&mut out);
        encoder.put_status(200, &mut out);
        encoder.put(Name::Server, b"Server", b"example", &mut out);
        encoder.put(Name::Other, b"Grpc-Encoding", b"identity", &mut out);
        encoder.put(Name::ContentLength, b"content-length", b"123", &mut out);
        sizes.push(out.len());
    }
    assert_eq!(sizes, [41, 40, 9, 9], "a name in the static table takes a byte less when it is inserted");
    let mut out = Vec::new();
    encoder.put(Name::Other, b"grpc-encoding", b"gzip", &mut out);
    assert_eq!(out, b"\x0f\x2f\x04gzip", "the name is indexed");
}

#[test]
fn secrets_are_never_indexed() {
    for name in ["authorization", "Cookie", "set-cookie", "proxy-authorization", "apikey"] {
        let mut encoder = Encoder::new();
        for _ in 0..3 {
            let mut out = Vec::new();
            encoder.put(Name::from_bytes(name.as_bytes()), name.as_bytes(), b"1234", &mut out);
            assert_eq!(out[0] & 0xf0, 0x10, "{name}");
        }
    }
    for name in ["x-auth-request", "X-CSRF-Token", "x-api-key", "session-id", "my_password"] {
        let mut encoder = Encoder::new();
        for _ in 0..3 {
            let mut out = Vec::new();
            encoder.put(Name::Other, name.as_bytes(), b"1234", &mut out);
            assert_eq!(out[0], 0x10, "{name}");
        }
    }
    let mut encoder = Encoder::new();
    for _ in 0..3 {
        let mut out = Vec::new();
        encoder.put_pseudo(Pseudo::Path, b"/a?b", &mut out);
        assert_eq!(out, b"\x04\x04/a?b");
    }
}

#[test]
fn changes_of_the_size_are_signalled() {
    let mut encoder = Encoder::new();
    let mut begin = |settings: &[u32]| {
        settings.iter().for_each(|setting| encoder.set_max_table_size(*setting));
        let mut out = Vec::new();
        encoder.begin(&mut out);
        out
    };
    assert_eq!(begin(&[]), b"");
    assert_eq!(begin(&[4096]), b"");
    assert_eq!(begin(&[u32::MAX]), b"", "4096 is the most");
    assert_eq!(begin(&[0, 4096]), b"\x20\x3f\xe1\x1f", "the smallest one comes first");
    assert_eq!(begin(&[]), b"");
    assert_eq!(begin(&[4096, 30]), b"\x3e");
    assert_eq!(begin(&[100]), b"\x3f\x45");
    assert_eq!(begin(&[50, 20, 100]), b"\x34\x3f\x45");
    assert_eq!(begin(&[50, 20]), b"\x34");
}

#[test]
fn static_entries_are_found_by_their_names() {
    let mut list = List::default();
    for (at, field) in FIELDS.iter().enumerate() {
        let (mut encoder, mut out) = (Encoder::new(), Vec::new());
        let (name, value) = (field.name(), field.value());
        match name {
            b":status" => encoder.put_status(str::from_utf8(value).unwrap().parse().unwrap(), &mut out),
            b":authority" => encoder.put_pseudo(Pseudo::Authority, value, &mut out),
            b":method" => encoder.put_pseudo(Pseudo::Method, value, &mut out),
            b":path" => encoder.put_pseudo(Pseudo::Path, value, &mut out),
            b":scheme" => encoder.put_pseudo(Pseudo::Scheme, value, &mut out),
            _ => encoder.put(field.about.id, name, value, &mut out),
        }
        match value {
            [] => assert!(out.len() <= 3 || field.about.id == Name::Other, "{field:?} is {out:?}"),
            _ => assert_eq!(out, [0x81 + at as u8]),
        }
        Decoder::new(DEFAULT_TABLE_SIZE).decode(&out, &mut list, 1000, 1).unwrap();
        assert!(list.iter().eq([(name, value, field.about.id)]));
        assert_eq!(field.about.id, Name::from_bytes(name));
    }
}

#[test]
fn numbers_are_decimal() {
    let mut out = Vec::new();
    Encoder::new().put_number(Name::ContentLength, b"content-length", u64::MAX, &mut out);
    assert_eq!(alone(&out), Ok(listed("content-length: 18446744073709551615")));
    out.clear();
    Encoder::new().put_number(Name::Other, b"Grpc-Status", 0, &mut out);
    assert_eq!(alone(&out), Ok(listed("grpc-status: 0")));
}
