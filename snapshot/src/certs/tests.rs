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
fn exact_names_then_wildcards_then_the_default_certificate() {
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
    // Of several certificates for one name the lowest id is served in any order of insertion; once
    // it is removed, the next.
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
fn invalid_certificates_are_refused_with_a_pointer() {
    let (cert, key) = (pem!("server-ec.crt"), pem!("server-ec.key"));
    let ssl = |cert: &str, key: &str| serde_json::json!({"sni": "a.com", "cert": cert, "key": key});
    assert_eq!(checked(ssl(cert, key)), Ok(()));
    assert_eq!(checked(ssl(pem!("version-1.crt"), key)), Ok(()));
    assert_eq!(
        checked(ssl("$env://CERT".repeat(20).as_str(), key)),
        Ok(()),
        "references are checked when they are used"
    );
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
fn clients_are_verified_by_authority_depth_and_time() {
    let provider = TlsSettings::default().provider;
    let rules = |depth| {
        let authorities = Authorities::new(chain(&[pem!("ca.crt")]));
        verify::Clients::new(authorities, depth, false, &provider)
    };
    let verdict = |depth, texts: &[&str], now| rules(depth).verdict(&chain(texts), now as u64);
    assert_eq!(verdict(1, &[pem!("client.crt")], NOW), Verdict::Success);
    assert_eq!(verdict(0, &[pem!("client.crt")], NOW), Verdict::Success);
    assert_eq!(verdict(1, &[pem!("deep-client.crt"), pem!("middle-ca.crt")], NOW), Verdict::Success);
    // A manually configured certificate is trusted itself.
    assert_eq!(verdict(0, &[pem!("ca.crt")], NOW), Verdict::Success);
    for (depth, texts, now) in [
        (0, &[pem!("deep-client.crt"), pem!("middle-ca.crt")][..], NOW),
        (1, &[pem!("deep-client.crt")], NOW),
        (1, &[pem!("stranger.crt")], NOW),
        // The certificate is for servers only.
        (1, &[pem!("other-ca.crt")], NOW),
        (1, &[pem!("client.crt")], 1 << 40),
        (1, &[pem!("client.crt")], 0),
        (1, &[pem!("ca.crt")], 1 << 40),
    ] {
        assert!(matches!(verdict(depth, texts, now), Verdict::Failed(_)), "{depth} {now}");
    }
    assert_ne!(rules(0).digest(), rules(1).digest());
    // A certificate trusted by itself is accepted from its first second to its last.
    let ends = facts(pem!("ca.crt")).unwrap();
    let at = |now| verdict(0, &[pem!("ca.crt")], now);
    assert_eq!([at(ends.not_before), at(ends.not_after)], [Verdict::Success, Verdict::Success]);
    assert!(matches!(at(ends.not_before - 1), Verdict::Failed(_)));
    assert!(matches!(at(ends.not_after + 1), Verdict::Failed(_)));
}

#[test]
fn client_certificates_are_requested_according_to_the_rules() {
    let provider = TlsSettings::default().provider;
    let authorities = |texts: &[&str]| Authorities::new(chain(texts));
    let rules = |texts, mandatory| verify::Clients::new(authorities(texts), 1, mandatory, &provider);
    let both = [pem!("ca.crt"), pem!("other-ca.crt")];
    assert_eq!((authorities(&both).len(), authorities(&both).is_empty()), (2, false));
    assert_eq!((authorities(&[]).len(), authorities(&[]).is_empty()), (0, true));
    assert_ne!(rules(&both[..1], true).digest(), rules(&both[1..], true).digest());
    let now = rustls::pki_types::UnixTime::since_unix_epoch(std::time::Duration::from_secs(NOW as u64));
    let stranger = &chain(&[pem!("stranger.crt")])[0];
    for mandatory in [true, false] {
        let rules = rules(&both[..1], mandatory);
        let rules: &dyn rustls::server::danger::ClientCertVerifier = &rules;
        assert_eq!(rules.client_auth_mandatory(), mandatory);
        assert_eq!(rules.root_hint_subjects().len(), 1);
        assert!(!rules.supported_verify_schemes().is_empty());
        // If paths are exempt, the handshake accepts every client and requests are checked.
        assert_eq!(rules.verify_client_cert(stranger, &[], now).is_err(), mandatory);
    }
}

#[test]
fn a_server_is_verified_by_authority_name_and_time() {
    use rustls::client::danger::ServerCertVerifier;
    let algorithms = TlsSettings::default().provider.signature_verification_algorithms;
    let verified = |trusted: Option<&str>, name: &'static str, now: i64| {
        let trusted = trusted.map(|text| Arc::new(Authorities::new(chain(&[text]))));
        let servers = verify::Servers { trusted, algorithms };
        assert!(!servers.supported_verify_schemes().is_empty());
        let name = rustls::pki_types::ServerName::try_from(name).unwrap();
        let now = rustls::pki_types::UnixTime::since_unix_epoch(std::time::Duration::from_secs(now as u64));
        servers.verify_server_cert(&chain(&[pem!("server-ec.crt")])[0], &[], &name, &[], now).is_ok()
    };
    let names = facts(pem!("server-ec.crt")).unwrap().names;
    assert_eq!(names, ["server.test", "*.server.test"]);
    assert!(verified(Some(pem!("ca.crt")), "server.test", NOW));
    assert!(!verified(Some(pem!("ca.crt")), "other.test", NOW));
    assert!(!verified(Some(pem!("ca.crt")), "server.test", 0));
    assert!(!verified(Some(pem!("other-ca.crt")), "server.test", NOW));
    assert!(verified(None, "other.test", 0), "any server is accepted");
}

#[test]
fn expiry_and_issuer_are_read_from_a_certificate() {
    let ends = facts(pem!("expired.crt")).unwrap();
    assert!(!ends.is_self_signed && facts(pem!("ca.crt")).unwrap().is_self_signed);
    assert!(facts("none").is_none());
    for (after, days) in [(0, None), (1, Some(0)), (86_399, Some(0)), (3 * 86_400, Some(3))] {
        assert_eq!(expired_for(pem!("expired.crt"), ends.not_after + after), days, "{after}");
        let provider = TlsSettings::default().provider;
        let ssl =
            serde_json::json!({"sni": "a.com", "cert": pem!("expired.crt"), "key": pem!("expired.key")});
        let model::Resource::Ssl(ssl) = model::Resource::parse(model::Kind::Ssl, "1", &ssl).unwrap() else {
            unreachable!("it is an ssl")
        };
        let got = check(&ssl, &provider, ends.not_after + after)
            .err()
            .and_then(|invalid| Some(invalid.got?.into_string()));
        assert_eq!(got, days.map(|days| format!("one that expired {days} days ago")), "{after}");
    }
}

/// A certificate that requires client certificates.
fn asking(id: &str, skip: &[&str]) -> Arc<Certificate> {
    let settings = TlsSettings::default();
    let pair = pair(&written(pem!("server-ec.crt"), pem!("server-ec.key")), &settings.provider).unwrap();
    let verifier = clients(Authorities::new(chain(&[pem!("ca.crt")])), 1, skip.is_empty(), &settings);
    let skip = skip.iter().map(|text| Pattern::new(text, false).unwrap()).collect();
    let client = Some((verifier, skip));
    Arc::new(
        certificate(Parts { id, pairs: vec![pair], versions: settings.versions, client }, &settings).unwrap(),
    )
}

#[test]
fn client_look_ups_last_while_a_certificate_requires_them() {
    let mut certificates = Certificates::new(Some("Fallback.test"));
    assert_eq!(certificates.fallback(), Some("fallback.test"));
    let (open, strict) = (served("1"), asking("2", &["/open"]));
    certificates.insert(&names(&["a.test"]), &open);
    assert!(!certificates.ask_clients());
    certificates.insert(&names(&["b.test", "c.test"]), &strict);
    assert!(certificates.ask_clients());
    certificates.remove(&names(&["b.test", "c.test"]), &strict);
    assert!(!certificates.ask_clients());
    let (good, bad) = (chain(&[pem!("client.crt")]), chain(&[pem!("stranger.crt")]));
    assert_eq!(strict.verdict(Some(&good), NOW as u64), Verdict::Success);
    assert!(matches!(strict.verdict(Some(&bad), NOW as u64), Verdict::Failed(_)));
    assert_eq!(
        [strict.verdict(None, 0), open.verdict(Some(&good), NOW as u64)],
        [Verdict::None, Verdict::None]
    );
}

#[test]
fn each_listener_offers_the_protocols_it_speaks() {
    let certificate = served("1");
    let offered = |config: Arc<ServerConfig>| -> Vec<String> {
        config.alpn_protocols.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
    };
    assert_eq!(offered(certificate.config(false)), ["http/1.1", "http/1.0"]);
    assert_eq!(offered(certificate.config(true)), ["h2", "http/1.1", "http/1.0"]);
    assert_eq!(offered(certificate.config_of_h3()), ["h3"]);
    assert!(certificate.config_of_streams().alpn_protocols.is_empty());
}

#[test]
fn the_cheapest_key_that_the_client_supports_is_used() {
    use rustls::client::ClientConfig;
    let settings = TlsSettings::default();
    let pair = |cert, key| pair(&written(cert, key), &settings.provider).unwrap();
    let rsa = pair(pem!("server-rsa.crt"), pem!("server-rsa.key"));
    let ec = pair(pem!("server-ec.crt"), pem!("server-ec.key"));
    let shown = |pairs: &[&Arc<CertifiedKey>], known: &[rustls::SignatureScheme]| {
        let pairs = pairs.iter().map(|pair| (*pair).clone()).collect();
        let parts = Parts { id: "1", pairs, versions: settings.versions, client: None };
        let config = certificate(parts, &settings).unwrap().config(false);
        let all = settings.provider.signature_verification_algorithms;
        let mapping: Vec<_> =
            all.mapping.iter().filter(|(scheme, _)| known.contains(scheme)).copied().collect();
        let algorithms = rustls::crypto::WebPkiSupportedAlgorithms { mapping: mapping.leak(), ..all };
        let client = ClientConfig::builder_with_provider(settings.provider.clone());
        let client = client.with_safe_default_protocol_versions().unwrap().dangerous();
        let verifier = Arc::new(verify::Servers { trusted: None, algorithms });
        let client = client.with_custom_certificate_verifier(verifier).with_no_client_auth();
        let mut client =
            rustls::ClientConnection::new(Arc::new(client), "a.test".try_into().unwrap()).unwrap();
        let mut server = rustls::ServerConnection::new(config).unwrap();
        for _ in 0..4 {
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).unwrap();
            server.read_tls(&mut &bytes[..]).unwrap();
            server.process_new_packets().unwrap();
            bytes.clear();
            server.write_tls(&mut bytes).unwrap();
            client.read_tls(&mut &bytes[..]).unwrap();
            client.process_new_packets().unwrap();
        }
        let end = client.peer_certificates().unwrap()[0].clone();
        if end == rsa.cert[0] { "rsa" } else { "ec" }
    };
    let (pss, ecdsa) =
        (rustls::SignatureScheme::RSA_PSS_SHA256, rustls::SignatureScheme::ECDSA_NISTP256_SHA256);
    for pairs in [[&rsa, &ec], [&ec, &rsa]] {
        assert_eq!(shown(&pairs, &[pss, ecdsa]), "ec");
        assert_eq!(shown(&pairs, &[pss]), "rsa");
        assert_eq!(shown(&pairs, &[ecdsa]), "ec");
    }
}

#[test]
fn client_certificate_fields_match_nginx() {
    let read = client_certificate(&chain(&[pem!("client.crt")])[0]).unwrap();
    assert_eq!(read.subject, "CN=client,O=Sluice tests");
    assert_eq!(read.issuer, "CN=ca,O=Sluice tests");
    assert_eq!(read.fingerprint.len(), 40);
    assert!(read.not_after.ends_with(" GMT") && read.ends > NOW);
    assert_eq!(read.pem().trim(), pem!("client.crt").trim());
    assert!(client_certificate(&CertificateDer::from(vec![1, 2, 3])).is_none());
}

#[test]
fn upstream_tls_is_compared_by_behaviour() {
    let provider = TlsSettings::default().provider;
    let pair = pair(&written(pem!("client.crt"), pem!("client.key")), &provider).unwrap();
    let trusted = || Some(Arc::new(Authorities::new(chain(&[pem!("ca.crt")]))));
    let made = |trusted, pair| ClientTls::new(trusted, pair, &provider).unwrap();
    assert_eq!(made(None, None), made(None, None));
    assert_eq!(made(trusted(), Some(pair.clone())), made(trusted(), Some(pair.clone())));
    assert_ne!(made(trusted(), None), made(None, None));
    assert_ne!(
        made(Some(Arc::default()), None),
        made(None, None),
        "no authority trusted is not the same as no verification"
    );
    assert_ne!(made(None, Some(pair.clone())), made(None, None));
    assert_ne!(made(trusted(), Some(pair)), made(trusted(), None));
    assert_eq!(made(trusted(), None).identity(), made(trusted(), None).identity());
    assert_ne!(made(trusted(), None).identity(), made(None, None).identity());
}
