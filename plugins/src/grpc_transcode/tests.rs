mod memory;

use sdk::protos::prost_reflect::{DynamicMessage, Value as Reflected};
use sdk::testing::{Probe, chunk, now, respond, with_body};

use super::plan::NO_METHOD;
use super::*;

const PROTO: &str = r#"
    syntax = "proto3";
    package t;
    import "google/protobuf/struct.proto";
    service T {
        rpc One(All) returns (All) {}
        rpc Many(All) returns (stream All) {}
        rpc Struct(google.protobuf.Struct) returns (google.protobuf.Struct) {}
    }
    enum Color { RED = 0; GREEN = 1; }
    message Inner { string s = 1; repeated string tags = 2; Inner inner = 3; }
    message All {
        string text = 1;
        int32 i32 = 2;
        int64 i64 = 3;
        uint32 u32 = 4;
        uint64 u64 = 5;
        sint32 s32 = 6;
        sint64 s64 = 7;
        fixed32 f32 = 8;
        fixed64 f64 = 9;
        sfixed32 sf32 = 10;
        sfixed64 sf64 = 11;
        bool truth = 12;
        bytes raw = 13;
        double real = 14;
        float single = 15;
        Color color = 16;
        Inner inner = 17;
        repeated string texts = 18;
        repeated int32 numbers = 19;
        repeated int32 loose = 20 [packed = false];
        repeated Inner inners = 21;
        map<string, Inner> by_name = 22;
        map<int64, bool> by_number = 23;
        map<bool, Color> by_truth = 24;
        oneof choice { string left = 25; int32 right = 26; }
        optional string maybe = 27;
    }
    message Detail { int64 code = 1; string message = 2; }
"#;

const OLD: &str = r#"
    syntax = "proto2";
    package old;
    service T { rpc One(All) returns (All) {} }
    enum Color { RED = 3; GREEN = 4; }
    message All {
        optional int32 plain = 1;
        optional int32 seven = 2 [default = -7];
        optional sint64 eight = 3 [default = -8];
        optional string text = 4 [default = "a\"b"];
        optional Color color = 5 [default = GREEN];
        optional double real = 6 [default = 1.5];
        optional fixed32 fixed = 7 [default = 9];
        repeated int32 list = 8;
        optional group Group = 9 { optional int32 a = 1; }
        optional bool truth = 10 [default = true];
        optional bytes raw = 11 [default = "xyz"];
    }
"#;

fn plan(proto: &str, service: &str, method: &str, options: &[&str]) -> Arc<Plan> {
    let config = json!({"proto_id": "1", "service": service, "method": method, "deadline": 0, "pb_option": options,
        "show_status_in_body": false, "max_req_body_size": 1, "max_resp_body_size": 1});
    let config = Config::deserialize(config).unwrap();
    Plan::new(&sdk::protos::compile(proto).unwrap(), &config).unwrap()
}

/// Returns the message that a request becomes.
fn encoded(plan: &Plan, form: Form, text: &str) -> Result<Vec<u8>, String> {
    let framed = plan.framed(form, text.as_bytes())?;
    assert_eq!(framed[0], 0);
    assert_eq!(framed[1..5], u32::try_from(framed.len() - 5).unwrap().to_be_bytes());
    Ok(framed[5..].to_vec())
}

fn frame(message: &[u8]) -> Vec<u8> {
    let mut framed = vec![0];
    framed.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    framed.extend(message);
    framed
}

fn limits(message: usize, json: usize) -> Limits {
    Limits { message, json, room: 1 << 30 }
}

fn decoded(plan: &Plan, message: &[u8]) -> Result<String, Fault> {
    let body = frame(message);
    let (json, read) = plan.json(&body, false, limits(1 << 20, 1 << 20))?;
    assert_eq!(read, body.len());
    Ok(String::from_utf8(json).unwrap())
}

/// The message as another implementation reads it.
fn reflected(message: &[u8]) -> DynamicMessage {
    let pool = sdk::protos::compile(PROTO).unwrap();
    DynamicMessage::decode(pool.get_message_by_name("t.All").unwrap(), message).unwrap()
}

const EVERY: &str = r#"{
    "text": "ä\n", "i32": -1, "i64": -9007199254740993, "u32": 4294967295, "u64": 18446744073709551615,
    "s32": -2, "s64": -3, "f32": 4, "f64": 5, "sf32": -6, "sf64": -7, "truth": true, "raw": "abc", "real": 1.5,
    "single": 0.1, "color": "GREEN", "inner": {"s": "in", "inner": {"tags": ["x"]}}, "texts": ["a", ""],
    "numbers": [1, -1, 300], "loose": [4, 5], "inners": [{"s": "1"}, {}],
    "by_name": {"a": {"s": "A"}, "b": {}}, "by_number": {"-5": true, "6": false}, "by_truth": {"true": "GREEN"},
    "right": 8, "maybe": "", "unknown": [{"deep": 1}]
}"#;

#[test]
fn every_type_comes_through() {
    let plan = plan(PROTO, "t.T", "One", &["no_default_values"]);
    let message = encoded(&plan, Form::Json, EVERY).unwrap();
    let read = reflected(&message);
    let field = |name: &str| read.get_field_by_name(name).unwrap().into_owned();
    assert_eq!(field("i32"), Reflected::I32(-1));
    assert_eq!(field("i64"), Reflected::I64(-9_007_199_254_740_993));
    assert_eq!(field("u64"), Reflected::U64(u64::MAX));
    assert_eq!(field("s32"), Reflected::I32(-2));
    assert_eq!(field("s64"), Reflected::I64(-3));
    assert_eq!(field("f64"), Reflected::U64(5));
    assert_eq!(field("sf32"), Reflected::I32(-6));
    assert_eq!(field("single"), Reflected::F32(0.1));
    assert_eq!(field("raw"), Reflected::Bytes("abc".into()));
    assert_eq!(field("color"), Reflected::EnumNumber(1));
    assert_eq!(field("numbers"), Reflected::List([1, -1, 300].map(Reflected::I32).to_vec()));
    assert_eq!(field("loose"), Reflected::List([4, 5].map(Reflected::I32).to_vec()));
    assert_eq!(field("by_number").as_map().map(|map| map.len()), Some(2));
    let shown: Value = serde_json::from_str(&decoded(&plan, &message).unwrap()).unwrap();
    let mut expected: Value = serde_json::from_str(EVERY).unwrap();
    expected.as_object_mut().unwrap().remove("unknown");
    assert_eq!(shown, expected);
    // In the order that the other one writes, and with its defaults left out.
    let again: Value = serde_json::from_str(
        &decoded(&plan, &sdk::protos::prost_reflect::prost::Message::encode_to_vec(&read)).unwrap(),
    )
    .unwrap();
    assert_eq!(again, expected);
}

#[test]
fn defaults_stand_where_the_options_want_them() {
    let all = |names: &[&str]| {
        let plan = plan(PROTO, "t.T", "One", names);
        serde_json::from_str::<Value>(&decoded(&plan, b"").unwrap()).unwrap()
    };
    let auto = all(&["auto_default_values"]);
    assert_eq!(auto, all(&[]));
    assert_eq!(auto, all(&["no_default_values", "use_default_values"]), "the last one counts");
    assert_eq!(auto["text"], json!(""));
    assert_eq!((&auto["i64"], &auto["truth"], &auto["real"]), (&json!(0), &json!(false), &json!(0)));
    assert_eq!((&auto["color"], &auto["texts"], &auto["by_name"]), (&json!("RED"), &json!([]), &json!({})));
    for absent in ["inner", "left", "right", "maybe"] {
        assert!(auto.get(absent).is_none(), "{absent}");
    }
    assert_eq!(all(&["enum_as_value"])["color"], json!(0));
    assert_eq!(all(&["no_default_values"]), json!({}));
    let lists = json!({"texts": [], "numbers": [], "loose": [], "inners": [], "by_name": {}, "by_number": {}, "by_truth": {}});
    assert_eq!(all(&["use_default_metatable"]), lists);
    let inner = plan(PROTO, "t.T", "One", &[]);
    let message =
        encoded(&inner, Form::Json, r#"{"inner": {}, "by_name": {"a": {}}, "inners": [{}]}"#).unwrap();
    let shown: Value = serde_json::from_str(&decoded(&inner, &message).unwrap()).unwrap();
    let empty = json!({"s": "", "tags": []});
    assert_eq!((&shown["inner"], &shown["by_name"]["a"], &shown["inners"][0]), (&empty, &empty, &empty));
}

#[test]
fn declared_defaults_of_proto2_are_those_of_the_proto() {
    let all = |names: &[&str]| decoded(&plan(OLD, "old.T", "One", names), b"").unwrap();
    assert_eq!(all(&[]), "{}");
    assert_eq!(
        all(&["use_default_values"]),
        r#"{"seven":-7,"eight":-8,"text":"a\"b","color":"GREEN","real":1.5,"fixed":9,"truth":true,"raw":"xyz"}"#
    );
    let old = plan(OLD, "old.T", "One", &[]);
    // A group is left out, and so is an enum's number that has no name.
    assert_eq!(decoded(&old, &[0x08, 1, 0x4b, 0x08, 1, 0x4c, 0x28, 9]).unwrap(), r#"{"plain":1,"color":9}"#);
}

#[test]
fn large_integers_are_texts_if_the_options_say_so() {
    let shown = |option: &str, text: &str| {
        let plan = plan(PROTO, "t.T", "One", &["no_default_values", option]);
        decoded(&plan, &encoded(&plan, Form::Json, text).unwrap()).unwrap()
    };
    let large = r#"{"i64":2251799813685261,"u64":18446744073709551615,"s64":-2251799813685261}"#;
    assert_eq!(shown("int64_as_number", large), large);
    assert_eq!(
        shown("int64_as_string", large),
        r##"{"i64":"#2251799813685261","u64":"#18446744073709551615","s64":"#-2251799813685261"}"##
    );
    assert_eq!(
        shown("int64_as_hexstring", large),
        r##"{"i64":"#0x800000000000D","u64":"#0xFFFFFFFFFFFFFFFF","s64":"#-0x800000000000D"}"##
    );
    let small = r#"{"i64":-2147483648,"u64":4294967295,"by_number":{"5000000000":true}}"#;
    assert_eq!(shown("int64_as_string", small), small.replace("\"5000", "\"#5000"));
    // They are read back.
    let plan = plan(PROTO, "t.T", "One", &["int64_as_string"]);
    let text = r##"{"i64":"#2251799813685261"}"##;
    assert_eq!(
        reflected(&encoded(&plan, Form::Json, text).unwrap()).get_field_by_name("i64").unwrap().as_i64(),
        Some(2_251_799_813_685_261)
    );
}

#[test]
fn arguments_fill_fields_and_lists() {
    let plan = plan(PROTO, "t.T", "One", &["no_default_values"]);
    let shown =
        |text: &str| encoded(&plan, Form::Arguments, text).map(|message| decoded(&plan, &message).unwrap());
    assert_eq!(
        shown("text=a%20b+c&i32=-5&texts=x&texts=y&numbers=1&numbers=2&truth&color=GREEN&other=1&real=2.5")
            .unwrap(),
        r#"{"text":"a b c","i32":-5,"truth":true,"real":2.5,"color":"GREEN","texts":["x","y"],"numbers":[1,2]}"#
    );
    assert_eq!(shown("").unwrap(), "{}");
    assert_eq!(shown("color=1").unwrap(), r#"{"color":"GREEN"}"#);
    for (text, field) in [
        ("i32=x", "i32"),
        ("i32=", "i32"),
        ("text", "text"),
        ("color=BLUE", "color"),
        ("inner=x", "inner"),
        ("by_name=x", "by_name"),
        ("text=%ff", "text"),
        ("i32=3000000000", "i32"),
    ] {
        let error = shown(text).unwrap_err();
        assert!(error.starts_with(&format!("field {field}: expected ")), "{text}: {error}");
    }
}

#[test]
fn json_that_does_not_fit_is_refused_with_the_field() {
    let plan = plan(PROTO, "t.T", "One", &[]);
    for (text, said) in [
        ("5", "an object"),
        ("[]", "an object"),
        ("{", "EOF"),
        ("{} x", "trailing"),
        (r#"{"text": 5}"#, "field text: expected a text"),
        (r#"{"text": {"a": 1}}"#, "field text: expected no object"),
        (r#"{"text": ["a"]}"#, "field text: expected no list"),
        (r#"{"texts": "a"}"#, "field texts: expected a list"),
        (r#"{"texts": [null]}"#, "field texts"),
        (r#"{"by_name": "a"}"#, "field by_name: expected an object"),
        (r#"{"by_name": {"a": 5}}"#, "field value: expected an object"),
        (r#"{"by_number": {"x": true}}"#, "field key: expected an integer"),
        (r#"{"inner": "a"}"#, "field inner: expected an object"),
        (r#"{"inners": [5]}"#, "field inners: expected an object"),
        (r#"{"color": "GREE"}"#, "field color: expected a name or a number of its enum"),
        (r#"{"i32": 2147483648}"#, "field i32: expected an integer that its type can hold"),
        (r#"{"numbers": [1.5]}"#, "field numbers: expected an integer"),
    ] {
        let error = encoded(&plan, Form::Json, text).unwrap_err();
        assert!(error.contains(said), "{text}: {error}");
    }
    let null = encoded(&plan, Form::Json, r#"{"text": null, "inner": null, "texts": null}"#).unwrap();
    assert_eq!(null, b"");
    let deep =
        |depth: usize| format!("{}{}", r#"{"inner":"#.repeat(depth), "{}".to_owned() + &"}".repeat(depth));
    assert!(encoded(&plan, Form::Json, &deep(90)).is_ok());
    assert!(encoded(&plan, Form::Json, &deep(100_000)).is_err());
}

#[test]
fn parts_of_messages_and_members_of_a_oneof_are_read_as_protobuf_wants_it() {
    let plan = plan(PROTO, "t.T", "One", &["no_default_values"]);
    let shown = |message: &[u8]| decoded(&plan, message);
    let one = |text: &str| encoded(&plan, Form::Json, text).unwrap();
    let both =
        [one(r#"{"inner":{"s":"a","tags":["x"]}}"#), one(r#"{"inner":{"s":"b","tags":["y"]}}"#)].concat();
    assert_eq!(shown(&both).unwrap(), r#"{"inner":{"s":"b","tags":["x","y"]}}"#);
    assert_eq!(shown(&[one(r#"{"left":"a"}"#), one(r#"{"right":1}"#)].concat()).unwrap(), r#"{"right":1}"#);
    assert_eq!(shown(&[one(r#"{"right":1}"#), one(r#"{"left":"a"}"#)].concat()).unwrap(), r#"{"left":"a"}"#);
    // A packed list and single elements, in any order.
    let packed = [&[0x98, 0x01, 7][..], &one(r#"{"numbers":[8,9]}"#), &[0xa2, 0x01, 2, 1, 2]].concat();
    assert_eq!(shown(&packed).unwrap(), r#"{"numbers":[7,8,9],"loose":[1,2]}"#);
    // An entry of a map without key and value.
    assert_eq!(shown(&[0xba, 0x01, 0]).unwrap(), r#"{"by_number":{"0":false}}"#);
    assert_eq!(shown(&[0xb2, 0x01, 0]).unwrap(), r#"{"by_name":{"":{}}}"#);
    // Texts that are not UTF-8, and bytes.
    assert_eq!(shown(&[0x0a, 1, 0xff]).unwrap(), "{\"text\":\"\u{fffd}\"}");
    assert_eq!(shown(&[0x6a, 1, 0xff]).unwrap(), r#"{"raw":"/w=="}"#);
    assert_eq!(shown(&[0x71, 0, 0, 0, 0, 0, 0, 0xf0, 0x7f]).unwrap(), r#"{"real":"Infinity"}"#);
    for broken in [&[0x0a, 5][..], &[0x08, 1], &[0x12, 1, 0], &[0x98, 0x01], &[0x8a, 0x01, 1, 0x80]] {
        assert_eq!(shown(broken), Err(Fault::Malformed), "{broken:?}");
    }
}

#[test]
fn hostile_messages_have_bounds() {
    let plan = plan(PROTO, "t.T", "One", &[]);
    let nested = |depth: usize| {
        let mut message = Vec::new();
        for at in 0..depth {
            let tag: &[u8] = if at + 1 == depth { &[0x8a, 0x01] } else { &[0x1a] };
            let mut outer = tag.to_vec();
            write::bytes(&message, &mut outer);
            message = outer;
        }
        message
    };
    assert!(decoded(&plan, &nested(90)).is_ok());
    assert_eq!(decoded(&plan, &nested(10_000)), Err(Fault::TooDeep));
    // Two bytes become a line of defaults.
    let many = [0xaa, 0x01, 0].repeat(100_000);
    assert_eq!(plan.json(&frame(&many), false, limits(1 << 20, 1 << 20)), Err(Fault::TooLong));
    assert_eq!(plan.json(&frame(&[0; 11]), false, limits(10, 100)), Err(Fault::TooLong));
    assert_eq!(plan.json(&[1, 0, 0, 0, 0], false, limits(10, 100)), Err(Fault::Malformed));
    // A message in parts, in parts again.
    let mut message = vec![0x0a, 100];
    message.extend([b'x'; 100]);
    for _ in 0..60 {
        let mut outer = vec![0x1a];
        write::bytes(&message, &mut outer);
        outer.extend([0x1a, 0]);
        message = outer;
    }
    let mut outer = vec![0x8a, 0x01];
    write::bytes(&message, &mut outer);
    assert!(decoded(&plan, &outer).is_ok());
}

fn config(more: &Value) -> Value {
    let mut config = json!({"proto_id": 1, "service": "t.T", "method": "One"});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config
}

#[test]
fn a_request_becomes_a_call() {
    for (method, target, headers, body, message) in [
        ("GET", "/a?i32=5", vec![], "", &[0x10, 5][..]),
        ("POST", "/a?i32=6", vec![], "i32=5", &[0x10, 5]),
        ("POST", "/a", vec![("Content-Type", "Application/JSON; charset=utf-8")], r#"{"i32":5}"#, &[0x10, 5]),
        ("PUT", "/a", vec![("Content-Type", "application/json")], r#"{"i32":5}"#, &[0x10, 5]),
        ("POST", "/a", vec![("Content-Type", "application/json")], "", &[]),
        ("DELETE", "/a?i32=5", vec![("Content-Type", "application/json")], "{}", &[0x10, 5]),
    ] {
        let mut probe = Probe::request(method, target, &headers).proto("1", PROTO);
        let stage: GrpcTranscode = probe.stage(config(&json!({"deadline": 499.5}))).unwrap();
        let mut x = probe.exchange();
        with_body(&mut x, body.as_bytes());
        assert!(matches!(stage.access(&mut x), Step::Next), "{method} {body}");
        assert_eq!(x.body(), frame(message), "{method} {body}");
        let mut uri = Vec::new();
        x.upstream_uri(&mut uri);
        assert_eq!((x.upstream_method(), &uri[..]), (Method::Post, &b"/t.T/One"[..]));
        assert_eq!(x.header("grpc-timeout"), Some(&b"500m"[..]));
    }
}

#[test]
fn what_cannot_be_called_is_refused() {
    let refused = |more: Value, proto: Option<&str>, headers: &[(&str, &str)], body: &[u8]| {
        let mut probe = Probe::request("POST", "/", headers);
        if let Some(proto) = proto {
            probe = probe.proto("1", proto);
        }
        let stage: GrpcTranscode = probe.stage(config(&more)).unwrap();
        let mut x = probe.exchange();
        with_body(&mut x, body);
        match stage.access(&mut x) {
            Step::Reply(reply) => (reply.status, reply.reason),
            step => panic!("{step:?}"),
        }
    };
    assert_eq!(refused(json!({}), None, &[], b""), (503, NO_PROTO));
    assert_eq!(refused(json!({"proto_id": "2"}), Some(PROTO), &[], b""), (503, NO_PROTO));
    assert_eq!(refused(json!({"service": "t.S"}), Some(PROTO), &[], b""), (503, NO_METHOD));
    assert_eq!(refused(json!({"method": "None"}), Some(PROTO), &[], b""), (503, NO_METHOD));
    assert_eq!(refused(json!({"max_req_body_size": 3}), Some(PROTO), &[], b"a=12").0, 413);
    assert_eq!(refused(json!({}), Some(PROTO), &[("Content-Type", "application/json")], b"{").0, 400);
}

/// A response to a call: its status, headers of interest, and body.
fn answered(
    more: &Value,
    head: &[(&str, &str)],
    pieces: &[&[u8]],
    trailers: &[(&str, &str)],
) -> Result<(u16, String, String), (u16, String)> {
    let mut probe = Probe::get("/").proto("1", PROTO);
    let stage: GrpcTranscode = probe.stage(config(more)).unwrap();
    let mut x = probe.exchange();
    with_body(&mut x, b"");
    assert!(matches!(stage.access(&mut x), Step::Next));
    respond(&mut x, 200, &[head, &[("Content-Type", "application/grpc+proto")]].concat());
    assert!(matches!(stage.header_action(&mut x), Step::Next));
    let one = stage.filters_body(&x) && more.get("method").is_none();
    assert_eq!(stage.holds_body(&x), one && x.status() == 200);
    let mut body = Vec::new();
    for (at, piece) in pieces.iter().enumerate() {
        let mut chunk = chunk(piece, at + 1 == pieces.len());
        if chunk.last {
            for (name, value) in trailers {
                x.engine_mut().messages.response_trailers.append(name.as_bytes(), value.as_bytes()).unwrap();
            }
        }
        if stage.filters_body(&x) {
            let mut step = stage.body_action(&mut x, &mut chunk);
            if matches!(step, Step::Wait) {
                step = now(stage.wait_body(&mut x, &mut chunk));
            }
            match step {
                Step::Next => assert!(!chunk.refused),
                Step::Reply(reply) => {
                    return Err((reply.status, String::from_utf8(reply.body.to_vec()).unwrap()));
                }
                step => panic!("{step:?}"),
            }
        }
        body.extend(chunk.data);
    }
    let kind = x.response_header("Content-Type").unwrap_or_default();
    Ok((x.status(), String::from_utf8(kind.to_vec()).unwrap(), String::from_utf8(body).unwrap()))
}

const BARE: &str = "no_default_values";

#[test]
fn a_message_becomes_json_however_it_arrives() {
    let bare = json!({"pb_option": [BARE]});
    let expected = Ok((200, "application/json".to_owned(), r#"{"i32":5}"#.to_owned()));
    let whole = frame(&[0x10, 5]);
    let ok = [("grpc-status", "0")];
    assert_eq!(answered(&bare, &[], &[&whole], &ok), expected);
    let pieces: Vec<&[u8]> = whole.chunks(1).collect();
    assert_eq!(answered(&bare, &[("Content-Length", "7")], &pieces, &ok), expected);
    assert_eq!(answered(&bare, &[("grpc-status", "0")], &[&whole, b""], &[]), expected);
    let nothing = Ok((200, "application/json".to_owned(), "{}".to_owned()));
    assert_eq!(answered(&bare, &[], &[b""], &ok), nothing);
    // Long enough for a background thread.
    let long = "x".repeat(100_000);
    let mut message = vec![0x0a];
    write::bytes(long.as_bytes(), &mut message);
    let framed = frame(&message);
    let (first, second) = framed.split_at(50_000);
    let expected = Ok((200, "application/json".to_owned(), format!(r#"{{"text":"{long}"}}"#)));
    assert_eq!(answered(&bare, &[], &[first, second], &ok), expected);
}

#[test]
fn a_response_that_is_no_message_gets_502() {
    let failed = Err((502, "{\"error_msg\":\"failed to decode response data by protobuf\"}\n".to_owned()));
    let ok = [("grpc-status", "0")];
    let two = [frame(&[0x10, 5]), frame(&[0x10, 5])].concat();
    for body in [
        &b"\x00\x00"[..],
        b"\x00\x00\x00\x00\x02\x10",
        b"\x01\x00\x00\x00\x00",
        b"\x00\x00\x00\x00\x01\x10",
        &two,
    ] {
        assert_eq!(answered(&json!({}), &[], &[body], &ok), failed, "{body:?}");
    }
    let short = json!({"max_resp_body_size": 1});
    assert_eq!(answered(&short, &[], &[&frame(&[0x10, 5])], &ok), failed);
    assert_eq!(answered(&short, &[], &[b"\x00\x00\x00\x00\x01\x10\x05", b""], &ok), failed);
}

#[test]
fn a_failed_call_has_the_status_of_its_outcome() {
    let head =
        [("grpc-status", "14"), ("grpc-message", "Out of service"), ("grpc-status-details-bin", DETAILS)];
    let json = "application/json".to_owned();
    let (plain, shown) = (json!({}), json!({"show_status_in_body": true}));
    assert_eq!(answered(&plain, &head, &[b""], &[]), Ok((503, json.clone(), String::new())));
    let undecoded = r#"{"error":{"code":14,"message":"Out of service","details":[{"type_url":"type.googleapis.com/t.Detail","value":"\b\u0001\u0012\u0002no"}]}}"#;
    assert_eq!(answered(&shown, &head, &[b""], &[]), Ok((503, json.clone(), undecoded.to_owned())));
    let typed = |name: &str| json!({"show_status_in_body": true, "status_detail_type": name});
    let decoded = r#"{"error":{"code":14,"message":"Out of service","details":[{"code":1,"message":"no"}]}}"#;
    assert_eq!(answered(&typed("t.Detail"), &head, &[b""], &[]), Ok((503, json.clone(), decoded.to_owned())));
    let sentence = "failed to call pb.decode to decode details in grpc-status-details-bin";
    for wrong in ["t.None", "t.Inner"] {
        assert_eq!(answered(&typed(wrong), &head, &[b""], &[]), Ok((503, json.clone(), sentence.to_owned())));
    }
    // Known only at the end.
    assert_eq!(answered(&plain, &[], &[b""], &head), Err((503, String::new())));
    assert_eq!(
        answered(&typed("t.Detail"), &[], &[&frame(&[0x10, 5]), b""], &head),
        Err((503, decoded.to_owned()))
    );
    assert_eq!(answered(&plain, &[("grpc-status", "99")], &[b""], &[]), Ok((599, json, String::new())));
}

/// Code 14, "Out of service", and a `t.Detail`.
const DETAILS: &str = "CA4SDk91dCBvZiBzZXJ2aWNlGiYKHHR5cGUuZ29vZ2xlYXBpcy5jb20vdC5EZXRhaWwSBggBEgJubw";

#[test]
fn messages_of_a_stream_are_lines() {
    let many = json!({"method": "Many", "pb_option": [BARE]});
    let (one, two) = (frame(&[0x10, 5]), frame(&[]));
    let kind = "application/x-ndjson".to_owned();
    let lines = Ok((200, kind.clone(), "{\"i32\":5}\n{}\n{\"i32\":5}\n".to_owned()));
    let whole = [&one[..], &two, &one].concat();
    let ok = [("grpc-status", "0")];
    assert_eq!(answered(&many, &[], &[&whole], &ok), lines);
    assert_eq!(answered(&many, &[], &whole.chunks(1).chain([&b""[..]]).collect::<Vec<_>>(), &ok), lines);
    assert_eq!(answered(&many, &[], &[&whole[..9], &whole[9..], b""], &ok), lines);
    let failed = [("grpc-status", "8"), ("grpc-message", "too%20much")];
    let error = "{\"i32\":5}\n{\"error\":{\"code\":8,\"message\":\"too much\",\"details\":[]}}\n";
    assert_eq!(answered(&many, &[], &[&one, b""], &failed), Ok((200, kind.clone(), error.to_owned())));
    let long = frame(&[&[0x0a, 0xa0, 0x8d, 0x06][..], &[b'x'; 100_000]].concat());
    let (_, _, body) = answered(&many, &[], &[&long[..70_000], &long[70_000..], &one], &ok).unwrap();
    assert_eq!((body.len(), body.ends_with("x\"}\n{\"i32\":5}\n")), (100_022, true));
    // Cut off, or longer than its limit.
    assert_eq!(answered(&many, &[], &[&one, &one[..3]], &ok).unwrap_err().0, 502);
    let short = json!({"method": "Many", "max_resp_body_size": 2, "pb_option": [BARE]});
    assert_eq!(answered(&short, &[], &[&one], &ok), Ok((200, kind, "{\"i32\":5}\n".to_owned())));
    assert_eq!(answered(&short, &[], &[b"\x00\x00\x00\x00\x03"], &ok).unwrap_err().0, 502);
}

#[test]
fn other_responses_pass() {
    let mut probe = Probe::get("/").proto("1", PROTO);
    let stage: GrpcTranscode = probe.stage(config(&json!({}))).unwrap();
    for (status, kind) in
        [(200, "text/html"), (502, "text/html"), (404, "application/grpc"), (200, "application/grpc-web")]
    {
        let mut x = probe.exchange();
        with_body(&mut x, b"");
        assert!(matches!(stage.access(&mut x), Step::Next));
        x.engine_mut().messages.response = Default::default();
        respond(&mut x, status, &[("Content-Type", kind), ("Content-Length", "3")]);
        stage.header_filter(&mut x);
        assert!(!stage.filters_body(&x) && !stage.holds_body(&x), "{status} {kind}");
        assert_eq!(x.response_header("Content-Type"), Some(kind.as_bytes()));
    }
    let mut x = probe.exchange();
    respond(&mut x, 200, &[("Content-Type", "application/grpc")]);
    stage.header_filter(&mut x);
    assert!(!stage.filters_body(&x), "a response to a request that was not transcoded");
}
