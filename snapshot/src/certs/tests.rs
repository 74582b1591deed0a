use model::CertificatePair;

use super::*;

macro_rules! pem {
    ($name:literal) => {
        include_str!(concat!("../../../tests/certs/", $name))
    };
}

const NOW: i64 = 1_800_000_000;

fn written(cert: &str, key: &str) -> CertificatePair {
    CertificatePair { cert: cert.to_owned(), key: key.to_owned() }
}

fn served(id: &str) -> Arc<Certificate> {
    let settings = TlsSettings::default();
    let pair = pair(&written(pem!("server-ec.crt"), pem!("server-ec.key")), &settings.provider).unwrap();
    let parts = Parts { id, pairs: vec![pair], versions: settings.versions, client: None };
    Arc::new(certificate(parts, &settings).unwrap())
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn found(certificates: &Certificates, name: Option<&str>) -> Option<String> {
    certificates.find(name).map(|certificate| certificate.id.clone())
}

#[test]
fn a_name_finds_its_certificate_then_that_of_its_family_then_that_of_all() {
    let mut certificates = Certificates::new(Some("Fallback.test"));
    let all = [
        ("exact", &["a.com", "fallback.test"][..]),
        ("family", &["*.a.com"]),
        ("deeper", &["*.b.a.com", "x.a.com"]),
    ];
    for (id, list) in all {
        certificates.insert(&names(list), &served(id));
    }
    let check = |certificates: &Certificates, name, id: Option<&str>| {
        assert_eq!(found(certificates, name).as_deref(), id, "{name:?}");
    };
    check(&certificates, Some("a.com"), Some("exact"));
    check(&certificates, Some("A.COM."), Some("exact"));
    check(&certificates, Some("b.a.com"), Some("family"));
    check(&certificates, Some("x.a.com"), Some("deeper"));
    check(&certificates, Some("c.b.a.com"), Some("deeper"));
    check(&certificates, Some("d.c.b.a.com"), None);
    check(&certificates, Some(".a.com"), None);
    check(&certificates, Some("com"), None);
    check(&certificates, Some(""), None);
    check(&certificates, Some("other.test"), None);
    check(&certificates, None, Some("exact"));
    let before = certificates.clone();
    certificates.insert(&names(&["*"]), &served("all"));
    check(&certificates, Some("other.test"), Some("all"));
    check(&before, Some("other.test"), None);
    // Of several with one name the lowest id is served, whatever the order; when it goes, the next.
    let (one, two) = (served("1"), served("2"));
    certificates.insert(&names(&["twice.test"]), &two);
    certificates.insert(&names(&["twice.test"]), &one);
    check(&certificates, Some("twice.test"), Some("1"));
    certificates.remove(&names(&["twice.test"]), &one);
    check(&certificates, Some("twice.test"), Some("2"));
    certificates.remove(&names(&["twice.test"]), &two);
    check(&certificates, Some("twice.test"), Some("all"));
}

#[test]
fn many_names_are_found() {
    let mut certificates = Certificates::new(None);
    let one = served("1");
    for n in 0..2000 {
        certificates.insert(&names(&[&format!("host-{n}.test")]), &one);
    }
    for n in 0..2000 {
        assert!(certificates.find(Some(&format!("host-{n}.test"))).is_some(), "{n}");
    }
    assert!(certificates.find(Some("host-2000.test")).is_none());
}

fn checked(ssl: serde_json::Value) -> Result<(), (String, String)> {
    let model::Resource::Ssl(ssl) = model::Resource::parse(model::Kind::Ssl, "1", &ssl).unwrap() else {
        unreachable!("it is an ssl")
    };
    let provider = TlsSettings::default().provider;
    check(&ssl, &provider, NOW).map_err(|invalid| (invalid.pointer, invalid.reason))
}

#[test]
fn what_is_no_certificate_is_refused_with_its_place() {
    let (cert, key) = (pem!("server-ec.crt"), pem!("server-ec.key"));
    let ssl = |cert: &str, key: &str| serde_json::json!({"sni": "a.com", "cert": cert, "key": key});
    assert_eq!(checked(ssl(cert, key)), Ok(()));
    assert_eq!(checked(ssl(pem!("version-1.crt"), key)), Ok(()));
    assert_eq!(checked(ssl("$env://CERT".repeat(20).as_str(), key)), Ok(()), "looked at when it is used");
    let junk = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".repeat(4);
    for (cert, key, place, reason) in [
        (junk.as_str(), key, "/cert", "failed to parse cert: PEM_read_bio_X509_AUX() failed"),
        (key, key, "/cert", "failed to parse cert: PEM_read_bio_X509_AUX() failed"),
        (cert, cert, "/key", "failed to parse key: PEM_read_bio_PrivateKey() failed"),
        (cert, &"bm90IGEga2V5".repeat(20), "/key", "failed to decrypt previous encrypted key"),
        (
            cert,
            pem!("client.key"),
            "/key",
            "failed to parse key: X509_check_private_key() failed: key values mismatch",
        ),
        (
            pem!("version-1.crt"),
            pem!("client.key"),
            "/key",
            "failed to parse key: X509_check_private_key() failed: key values mismatch",
        ),
        (pem!("expired.crt"), pem!("expired.key"), "/cert", "failed to parse cert: certificate has expired"),
    ] {
        let refused = checked(ssl(cert, key)).unwrap_err();
        assert_eq!((refused.0.as_str(), refused.1.as_str()), (place, reason));
    }
    let mut more = ssl(cert, key);
    more["certs"] = serde_json::json!([pem!("server-rsa.crt"), cert]);
    more["keys"] = serde_json::json!([pem!("server-rsa.key"), pem!("server-rsa.key")]);
    let refused = checked(more).unwrap_err();
    assert_eq!(refused.0, "/keys/1");
    assert!(refused.1.starts_with("failed to handle cert-key pair[2]: failed to parse key"), "{}", refused.1);
    let mut client = ssl(cert, key);
    client["client"] = serde_json::json!({"ca": junk});
    let refused = checked(client).unwrap_err();
    assert_eq!(refused.0, "/client/ca");
    assert_eq!(
        refused.1,
        "failed to validate client_cert: failed to parse cert: PEM_read_bio_X509_AUX() failed"
    );
}

fn chain(texts: &[&str]) -> Vec<CertificateDer<'static>> {
    texts.iter().flat_map(|text| certificates(text).unwrap()).collect()
}

#[test]
fn clients_are_judged_by_authority_depth_and_time() {
    let provider = TlsSettings::default().provider;
    let rules = |depth| {
        let authorities = Authorities::new(chain(&[pem!("ca.crt")]));
        verify::Clients::new(authorities, depth, false, &provider)
    };
    let verdict = |depth, texts: &[&str], now| rules(depth).verdict(&chain(texts), now as u64);
    assert_eq!(verdict(1, &[pem!("client.crt")], NOW), Verdict::Success);
    assert_eq!(verdict(0, &[pem!("client.crt")], NOW), Verdict::Success);
    assert_eq!(verdict(1, &[pem!("deep-client.crt"), pem!("middle-ca.crt")], NOW), Verdict::Success);
    // An authority that was given by hand is trusted as whose certificate it is.
    assert_eq!(verdict(0, &[pem!("ca.crt")], NOW), Verdict::Success);
    for (depth, texts, now) in [
        (0, &[pem!("deep-client.crt"), pem!("middle-ca.crt")][..], NOW),
        (1, &[pem!("deep-client.crt")], NOW),
        (1, &[pem!("stranger.crt")], NOW),
        // For servers.
        (1, &[pem!("other-ca.crt")], NOW),
        (1, &[pem!("client.crt")], 1 << 40),
        (1, &[pem!("client.crt")], 0),
        (1, &[pem!("ca.crt")], 1 << 40),
    ] {
        assert!(matches!(verdict(depth, texts, now), Verdict::Failed(_)), "{depth} {now}");
    }
    assert_ne!(rules(0).digest(), rules(1).digest());
}

#[test]
fn a_clients_certificate_is_told_as_nginx_tells_it() {
    let read = client_certificate(&chain(&[pem!("client.crt")])[0]).unwrap();
    assert_eq!(read.subject, "CN=client,O=Sluice tests");
    assert_eq!(read.issuer, "CN=ca,O=Sluice tests");
    assert_eq!(read.fingerprint.len(), 40);
    assert!(read.not_after.ends_with(" GMT") && read.ends > NOW);
    assert_eq!(read.pem().trim(), pem!("client.crt").trim());
    assert!(client_certificate(&CertificateDer::from(vec![1, 2, 3])).is_none());
}

#[test]
fn tls_to_upstreams_is_told_apart_by_what_it_does() {
    let provider = TlsSettings::default().provider;
    let pair = pair(&written(pem!("client.crt"), pem!("client.key")), &provider).unwrap();
    let trusted = || Some(Arc::new(Authorities::new(chain(&[pem!("ca.crt")]))));
    let made = |trusted, pair| ClientTls::new(trusted, pair, &provider).unwrap();
    assert_eq!(made(None, None), made(None, None));
    assert_eq!(made(trusted(), Some(pair.clone())), made(trusted(), Some(pair.clone())));
    assert_ne!(made(trusted(), None), made(None, None));
    assert_ne!(made(None, Some(pair.clone())), made(None, None));
    assert_ne!(made(trusted(), Some(pair)), made(trusted(), None));
}
