//! The messages of etcd's API in `proto.rs` are made from `etcd.proto`, by `cargo x gen`. They are committed, as a
//! build script would have every build of the gateway compile a compiler first.

use std::path::Path;

use prost::Message;

use super::proto::compare::{CompareResult, CompareTarget, TargetUnion};
use super::proto::request_op::Request;
use super::proto::watch_request::RequestUnion;
use super::proto::{Compare, PutRequest, RequestOp, TxnRequest, WatchProgressRequest, WatchRequest};

/// Set, the messages are written instead of compared.
const WRITE: &str = "SLUICE_WRITE_MESSAGES";

fn compiled(proto: &Path) -> String {
    let folder = tempfile::tempdir().unwrap();
    let files = protox::compile([proto], proto.parent()).unwrap();
    prost_build::Config::new().out_dir(folder.path()).compile_fds(files).unwrap();
    let messages = std::fs::read_to_string(folder.path().join("etcdserverpb.rs")).unwrap();
    format!("//! The messages of etcd's API: see `etcd.proto`.\n\n{messages}")
}

#[test]
fn messages_are_those_of_the_proto_file() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/etcd");
    let (proto, rust) = (folder.join("etcd.proto"), folder.join("proto.rs"));
    let compiled = compiled(&proto);
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&rust, compiled).unwrap();
    } else {
        let committed = std::fs::read_to_string(&rust).unwrap();
        assert!(committed == compiled, "{} is stale: run `cargo x gen`", rust.display());
    }
}

#[test]
fn bytes_are_those_of_the_protocol() {
    // `mod_revision = 0` stands in a oneof and must be on the wire: an absent key has revision 0.
    let compare = Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Mod.into(),
        key: b"k".to_vec(),
        target_union: Some(TargetUnion::ModRevision(0)),
        range_end: Vec::new(),
    };
    assert_eq!(compare.encode_to_vec(), [0x10, 2, 0x1a, 1, b'k', 0x30, 0]);
    let put = PutRequest { key: b"a".to_vec(), value: b"b".to_vec(), lease: 0 };
    let put = RequestOp { request: Some(Request::RequestPut(put)) };
    let txn = TxnRequest { compare: Vec::new(), success: vec![put] };
    assert_eq!(txn.encode_to_vec(), [0x12, 8, 0x12, 6, 0x0a, 1, b'a', 0x12, 1, b'b']);
    let ask =
        WatchRequest { request_union: Some(RequestUnion::ProgressRequest(WatchProgressRequest::default())) };
    assert_eq!(ask.encode_to_vec(), [0x1a, 0]);
}
