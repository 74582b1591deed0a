use model::{Key, Kind};
use serde_json::json;

use super::*;
use crate::references;
use crate::store::{Expect, Memory};

const OLD: &str = "edd1c9f0985e76a2";
const NEW: &str = "qeddd145sfvddff3";

fn plugins() -> [(&'static str, Facts); 1] {
    let facts = Facts {
        version: json!(0.1),
        kind: Some("auth".to_owned()),
        scope: None,
        schema: json!({}),
        consumer_schema: Some(json!({"encrypt_fields": ["key"]})),
        metadata_schema: None,
    };
    [("key-auth", facts)]
}

fn over(inner: &Arc<Memory>, keys: &[&str], seals: bool) -> Sealed {
    Sealed::over(inner.clone(), Ring::new(keys).unwrap(), seals, plugins())
}

fn consumer(key: &str) -> Value {
    json!({"username": "jack", "plugins": {"key-auth": {"key": key}, "cors": {"key": "clear"}}})
}

fn key_of(value: &Value) -> &str {
    value.pointer("/plugins/key-auth/key").unwrap().as_str().unwrap()
}

async fn first(store: &dyn Store) -> Vec<Row> {
    match store.watch().next().await {
        Some(Change::Reset { items, .. }) => items,
        change => panic!("{change:?}"),
    }
}

#[tokio::test]
async fn secrets_are_sealed_inside_and_open_outside() {
    let inner = Arc::new(Memory::default());
    let store = over(&inner, &[NEW, OLD], true);
    let jack = Key::new(Kind::Consumer, "jack");
    let mut changes = store.watch();
    assert!(matches!(changes.next().await, Some(Change::Reset { .. })));
    let written = store.put(jack.clone(), consumer("auth-one"), Expect::Any, None).await.unwrap();
    let sealed = consumer("4y+JvURBE6ZwRbbgaryrhg==");
    assert_eq!(*written.value, sealed, "the answer shows it as it is kept");
    assert_eq!(*inner.get(&jack).await.unwrap().unwrap().value, sealed);

    let clear = consumer("auth-one");
    assert_eq!(*store.get(&jack).await.unwrap().unwrap().value, clear);
    assert_eq!(*store.list(Kind::Consumer, "").await.unwrap().0[0].value, clear);
    assert_eq!(store.rows(Kind::Consumer, "").await.unwrap().0[0].value(), clear);
    assert_eq!(first(&store).await[0].value(), clear);
    let Some(Change::Put(row)) = changes.next().await else { panic!("no change") };
    assert_eq!((row.value(), row.modified), (clear, written.modified));
}

#[tokio::test]
async fn what_no_key_opens_stays_as_it_is() {
    let inner = Arc::new(Memory::default());
    let jack = Key::new(Kind::Consumer, "jack");
    over(&inner, &["0123456789abcdef"], true)
        .put(jack.clone(), consumer("k"), Expect::Any, None)
        .await
        .unwrap();
    let kept = inner.get(&jack).await.unwrap().unwrap().value;
    let store = over(&inner, &[NEW, OLD], true);
    assert_eq!(store.get(&jack).await.unwrap().unwrap().value, kept);
    assert_eq!(first(&store).await[0].value(), *kept);
    store
        .sealer
        .fields
        .each(&jack, &mut consumer("k"), &mut |place, _| assert_eq!(place, "plugins.key-auth.key"));
    let row = first(&*inner).await.remove(0);
    assert_eq!(store.sealer.open_row(row).1.as_deref(), Some("consumers/jack: plugins.key-auth.key"));
}

#[tokio::test]
async fn a_ring_turns_and_sealing_can_be_switched_off() {
    let inner = Arc::new(Memory::default());
    let jack = Key::new(Kind::Consumer, "jack");
    over(&inner, &[OLD], true).put(jack.clone(), consumer("auth-two"), Expect::Any, None).await.unwrap();
    let turned = over(&inner, &[NEW, OLD], true);
    assert_eq!(key_of(&turned.get(&jack).await.unwrap().unwrap().value), "auth-two");
    // When disabled, old secrets are still decrypted, and new ones are stored in the clear.
    let off = over(&inner, &[OLD], false);
    assert_eq!(key_of(&off.get(&jack).await.unwrap().unwrap().value), "auth-two");
    off.put(jack.clone(), consumer("auth-two"), Expect::Any, None).await.unwrap();
    assert_eq!(key_of(&inner.get(&jack).await.unwrap().unwrap().value), "auth-two");
    // Without keys nothing is encrypted, as in APISIX.
    over(&inner, &[], true).put(jack.clone(), consumer("x"), Expect::Any, None).await.unwrap();
    assert_eq!(key_of(&inner.get(&jack).await.unwrap().unwrap().value), "x");
}

#[tokio::test]
async fn one_secret_belongs_to_one_consumer_however_it_is_kept() {
    let inner = Arc::new(Memory::default());
    let put = async |store: &Sealed, name: &str, secret: &str| {
        let key = Key::new(Kind::Consumer, name);
        let value = json!({"username": name, "plugins": {"key-auth": {"key": secret}}});
        let decide = move |view: &dyn View| {
            references::check(view, &key, &value)?;
            Ok(vec![Step::Put { key: key.clone(), value: value.clone(), ttl: None }])
        };
        store.write(Box::new(decide)).await.map(drop).map_err(|refused| refused.to_string())
    };
    put(&over(&inner, &[OLD], true), "old", "one").await.unwrap();
    put(&over(&inner, &[], true), "clear", "two").await.unwrap();
    let store = over(&inner, &[NEW, OLD], true);
    put(&store, "new", "three").await.unwrap();
    for (secret, holder) in [("one", "old"), ("two", "clear"), ("three", "new")] {
        let said = format!("duplicate key of plugin key-auth found with consumer: {holder}");
        assert_eq!(put(&store, "other", secret).await, Err(said));
        assert_eq!(put(&store, holder, secret).await, Ok(()), "its own");
    }
}

#[tokio::test]
async fn a_write_sees_secrets_as_they_were_sent() {
    let inner = Arc::new(Memory::default());
    let store = over(&inner, &[NEW, OLD], true);
    let jack = Key::new(Kind::Consumer, "jack");
    let first = store.put(jack.clone(), consumer("auth-one"), Expect::Any, None).await.unwrap();
    let key = jack.clone();
    let decide = move |view: &dyn View| {
        let there = view.get(&key).unwrap();
        assert_eq!(there.value(), consumer("auth-one"));
        Ok(vec![Step::Put { key: key.clone(), value: there.value(), ttl: None }])
    };
    store.write(Box::new(decide)).await.unwrap();
    assert_eq!(inner.get(&jack).await.unwrap().unwrap().value, first.value, "encrypted once, not twice");
}

/// The upstreams within traffic-split have private keys as any other upstream has.
#[tokio::test]
async fn private_keys_are_sealed_wherever_they_stand() {
    let pem = "-----BEGIN PRIVATE KEY-----";
    let upstream = json!({"nodes": {"a:1": 1}, "tls": {"client_cert": "c", "client_key": pem}});
    let split = json!({"rules": [{"weighted_upstreams": [{"weight": 1}, {"upstream": upstream}]}]});
    for (kind, value) in [
        (Kind::Ssl, json!({"cert": "c", "key": pem, "keys": [pem]})),
        (Kind::Upstream, upstream.clone()),
        (Kind::Route, json!({"upstream": upstream})),
        (Kind::Route, json!({"plugins": {"traffic-split": split}})),
        (Kind::PluginConfig, json!({"plugins": {"traffic-split": split}})),
        (Kind::Consumer, json!({"username": "1", "plugins": {"traffic-split": split}})),
    ] {
        let inner = Arc::new(Memory::default());
        let store = over(&inner, &[NEW], true);
        let key = Key::new(kind, "1");
        store.put(key.clone(), value.clone(), Expect::Any, None).await.unwrap();
        let kept = inner.get(&key).await.unwrap().unwrap().value.to_string();
        assert!(!kept.contains("PRIVATE"), "{kind}: {kept}");
        assert_eq!(*store.get(&key).await.unwrap().unwrap().value, value, "{kind}");
        assert_eq!(first(&store).await[0].value(), value, "{kind}");
    }
}

#[tokio::test]
async fn what_another_key_sealed_is_written_back_as_it_is() {
    let inner = Arc::new(Memory::default());
    let jack = Key::new(Kind::Consumer, "jack");
    over(&inner, &[OLD], true).put(jack.clone(), consumer("auth-one"), Expect::Any, None).await.unwrap();
    let kept = async || key_of(&inner.get(&jack).await.unwrap().unwrap().value).to_owned();
    let sealed = kept().await;
    // The key was taken from the ring; a client changes another field, and sends back the shown value.
    let store = over(&inner, &[NEW], true);
    let mut shown = Value::clone(&store.get(&jack).await.unwrap().unwrap().value);
    shown["desc"] = json!("changed");
    store.put(jack.clone(), shown, Expect::Any, None).await.unwrap();
    assert_eq!(kept().await, sealed);
    // With the key back, the secret is what it was.
    let store = over(&inner, &[NEW, OLD], true);
    assert_eq!(key_of(&store.get(&jack).await.unwrap().unwrap().value), "auth-one");

    // A new secret that only looks like one is encrypted, and so is one in the clear that was stored before.
    let store = over(&inner, &[NEW], true);
    let looks = "AAAAAAAAAAAAAAAAAAAAAA==";
    store.put(jack.clone(), consumer(looks), Expect::Any, None).await.unwrap();
    assert_ne!(kept().await, looks);
    let hex = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    inner.put(jack.clone(), consumer(hex), Expect::Any, None).await.unwrap();
    store.put(jack.clone(), consumer(hex), Expect::Any, None).await.unwrap();
    assert_ne!(kept().await, hex);
}

#[test]
fn an_opener_gives_what_it_has_decrypted_and_nothing_else() {
    let opener = |key| Opener::new(Ring::new(&[key]).unwrap(), plugins());
    let jack = Key::new(Kind::Consumer, "jack");
    let sealed = consumer("4y+JvURBE6ZwRbbgaryrhg==");
    assert_eq!(opener(NEW).opened(&jack, &sealed), Some(consumer("auth-one")));
    assert_eq!(opener(OLD).opened(&jack, &sealed), None);
    assert_eq!(opener(NEW).opened(&jack, &consumer("auth-one")), None);
}
