//! Keys of signatures (RSA, ECDSA, Ed25519) and certificates.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    self, EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair, ParsedPublicKey, RsaEncoding,
    RsaKeyPair, VerificationAlgorithm,
};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use mlua::{Error, Lua, LuaString, Result, Table, UserData, UserDataMethods};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::call::function;

/// The longest text of a key or certificate.
const LONGEST: usize = 64 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rsa,
    P256,
    P384,
    P521,
    Ed25519,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Rsa => "RSA",
            Kind::P256 => "P-256",
            Kind::P384 => "P-384",
            Kind::P521 => "P-521",
            Kind::Ed25519 => "Ed25519",
        }
    }
}

/// A key: a public one, or a pair.
struct Key {
    kind: Kind,
    private: Option<Private>,
    public: Vec<u8>,
}

enum Private {
    Rsa(Box<RsaKeyPair>),
    /// A form of signatures belongs to a parsed key, so it is parsed for each.
    Ec(Vec<u8>),
    Ed25519(Box<Ed25519KeyPair>),
}

/// The kinds of public keys, each with a scheme that only accepts such keys.
const KINDS: [(Kind, &dyn VerificationAlgorithm); 5] = [
    (Kind::Rsa, &signature::RSA_PKCS1_2048_8192_SHA256),
    (Kind::P256, &signature::ECDSA_P256_SHA256_FIXED),
    (Kind::P384, &signature::ECDSA_P384_SHA384_FIXED),
    (Kind::P521, &signature::ECDSA_P521_SHA512_FIXED),
    (Kind::Ed25519, &signature::ED25519),
];

/// The DER form of a PEM text with its label; a text without PEM is DER.
fn read_pem(text: &[u8]) -> Option<(String, Vec<u8>)> {
    let text = std::str::from_utf8(text).ok()?;
    let (_, rest) = text.split_once("-----BEGIN ")?;
    let (label, rest) = rest.split_once("-----")?;
    let (body, _) = rest.split_once(&format!("-----END {label}-----"))?;
    let body: String = body.split_ascii_whitespace().collect();
    Some((label.to_owned(), BASE64_STANDARD.decode(body).ok()?))
}

fn load(text: &[u8]) -> std::result::Result<Key, &'static str> {
    if text.len() > LONGEST {
        return Err("the key is too long");
    }
    let (label, der) = read_pem(text).unwrap_or_else(|| (String::new(), text.to_vec()));
    match label.as_str() {
        "PUBLIC KEY" | "RSA PUBLIC KEY" => public(&der),
        "PRIVATE KEY" | "RSA PRIVATE KEY" | "EC PRIVATE KEY" => private(&der),
        "CERTIFICATE" => {
            let (_, certificate) = X509Certificate::from_der(&der).map_err(|_| "not a certificate")?;
            public(certificate.tbs_certificate.subject_pki.raw)
        }
        "" => private(&der).or_else(|_| public(&der)),
        _ => Err("not a key in PEM: the label is unknown"),
    }
}

fn public(der: &[u8]) -> std::result::Result<Key, &'static str> {
    let kind = KINDS.iter().find(|(_, scheme)| ParsedPublicKey::new(*scheme, der).is_ok());
    let (kind, _) = kind.ok_or("not a public key of a known kind (RSA keys have 2048 to 8192 bits)")?;
    Ok(Key { kind: *kind, private: None, public: der.to_vec() })
}

fn private(der: &[u8]) -> std::result::Result<Key, &'static str> {
    if let Ok(pair) = RsaKeyPair::from_pkcs8(der).or_else(|_| RsaKeyPair::from_der(der)) {
        let public = pair.public_key().as_ref().to_vec();
        return Ok(Key { kind: Kind::Rsa, private: Some(Private::Rsa(Box::new(pair))), public });
    }
    for (kind, scheme) in [
        (Kind::P256, &signature::ECDSA_P256_SHA256_FIXED_SIGNING),
        (Kind::P384, &signature::ECDSA_P384_SHA384_FIXED_SIGNING),
        (Kind::P521, &signature::ECDSA_P521_SHA512_FIXED_SIGNING),
    ] {
        if let Ok(pair) = ec_pair(scheme, der) {
            let public = pair.public_key().as_ref().to_vec();
            return Ok(Key { kind, private: Some(Private::Ec(der.to_vec())), public });
        }
    }
    let pair =
        Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).map_err(|_| "not a private key of a known kind")?;
    let public = pair.public_key().as_ref().to_vec();
    Ok(Key { kind: Kind::Ed25519, private: Some(Private::Ed25519(Box::new(pair))), public })
}

fn ec_pair(
    scheme: &'static EcdsaSigningAlgorithm,
    der: &[u8],
) -> std::result::Result<EcdsaKeyPair, aws_lc_rs::error::KeyRejected> {
    EcdsaKeyPair::from_pkcs8(scheme, der).or_else(|_| EcdsaKeyPair::from_private_key_der(scheme, der))
}

/// The form of a signature: `pss` for RSA, `fixed` for ECDSA as in tokens, else the usual one.
fn verifying(kind: Kind, hash: &str, form: &str) -> Option<&'static dyn VerificationAlgorithm> {
    Some(match (kind, hash, form) {
        (Kind::Rsa, "sha1", "") => &signature::RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY,
        (Kind::Rsa, "sha256", "") => &signature::RSA_PKCS1_2048_8192_SHA256,
        (Kind::Rsa, "sha384", "") => &signature::RSA_PKCS1_2048_8192_SHA384,
        (Kind::Rsa, "sha512", "") => &signature::RSA_PKCS1_2048_8192_SHA512,
        (Kind::Rsa, "sha256", "pss") => &signature::RSA_PSS_2048_8192_SHA256,
        (Kind::Rsa, "sha384", "pss") => &signature::RSA_PSS_2048_8192_SHA384,
        (Kind::Rsa, "sha512", "pss") => &signature::RSA_PSS_2048_8192_SHA512,
        (Kind::P256, "sha256", "fixed") => &signature::ECDSA_P256_SHA256_FIXED,
        (Kind::P384, "sha384", "fixed") => &signature::ECDSA_P384_SHA384_FIXED,
        (Kind::P521, "sha512", "fixed") => &signature::ECDSA_P521_SHA512_FIXED,
        (Kind::P256, "sha1", "") => &signature::ECDSA_P256_SHA1_ASN1,
        (Kind::P256, "sha256", "") => &signature::ECDSA_P256_SHA256_ASN1,
        (Kind::P256, "sha384", "") => &signature::ECDSA_P256_SHA384_ASN1,
        (Kind::P256, "sha512", "") => &signature::ECDSA_P256_SHA512_ASN1,
        (Kind::P384, "sha256", "") => &signature::ECDSA_P384_SHA256_ASN1,
        (Kind::P384, "sha384", "") => &signature::ECDSA_P384_SHA384_ASN1,
        (Kind::P384, "sha512", "") => &signature::ECDSA_P384_SHA512_ASN1,
        (Kind::P521, "sha256", "") => &signature::ECDSA_P521_SHA256_ASN1,
        (Kind::P521, "sha384", "") => &signature::ECDSA_P521_SHA384_ASN1,
        (Kind::P521, "sha512", "") => &signature::ECDSA_P521_SHA512_ASN1,
        (Kind::Ed25519, ..) => &signature::ED25519,
        _ => return None,
    })
}

const UNSUPPORTED: &str = "the digest does not fit the key";

impl Key {
    fn verify(
        &self,
        hash: &str,
        form: &str,
        text: &[u8],
        sig: &[u8],
    ) -> std::result::Result<bool, &'static str> {
        let scheme = verifying(self.kind, hash, form).ok_or(UNSUPPORTED)?;
        let key = ParsedPublicKey::new(scheme, &self.public).map_err(|_| "the key cannot be used")?;
        Ok(key.verify_sig(text, sig).is_ok())
    }

    fn sign(&self, hash: &str, form: &str, text: &[u8]) -> std::result::Result<Vec<u8>, &'static str> {
        let random = SystemRandom::new();
        match self.private.as_ref().ok_or("not a private key")? {
            Private::Rsa(pair) => {
                let encoding: &'static dyn RsaEncoding = match (hash, form) {
                    ("sha256", "") => &signature::RSA_PKCS1_SHA256,
                    ("sha384", "") => &signature::RSA_PKCS1_SHA384,
                    ("sha512", "") => &signature::RSA_PKCS1_SHA512,
                    ("sha256", "pss") => &signature::RSA_PSS_SHA256,
                    ("sha384", "pss") => &signature::RSA_PSS_SHA384,
                    ("sha512", "pss") => &signature::RSA_PSS_SHA512,
                    _ => return Err(UNSUPPORTED),
                };
                let mut signed = vec![0; pair.public_modulus_len()];
                pair.sign(encoding, &random, text, &mut signed).map_err(|_| "signing failed")?;
                Ok(signed)
            }
            Private::Ec(der) => {
                let scheme: &'static EcdsaSigningAlgorithm = match (self.kind, hash, form) {
                    (Kind::P256, "sha256", "fixed") => &signature::ECDSA_P256_SHA256_FIXED_SIGNING,
                    (Kind::P384, "sha384", "fixed") => &signature::ECDSA_P384_SHA384_FIXED_SIGNING,
                    (Kind::P521, "sha512", "fixed") => &signature::ECDSA_P521_SHA512_FIXED_SIGNING,
                    (Kind::P256, "sha256", "") => &signature::ECDSA_P256_SHA256_ASN1_SIGNING,
                    (Kind::P384, "sha384", "") => &signature::ECDSA_P384_SHA384_ASN1_SIGNING,
                    (Kind::P521, "sha256", "") => &signature::ECDSA_P521_SHA256_ASN1_SIGNING,
                    (Kind::P521, "sha384", "") => &signature::ECDSA_P521_SHA384_ASN1_SIGNING,
                    (Kind::P521, "sha512", "") => &signature::ECDSA_P521_SHA512_ASN1_SIGNING,
                    _ => return Err(UNSUPPORTED),
                };
                let pair = ec_pair(scheme, der).map_err(|_| "the key cannot be used")?;
                let signed = pair.sign(&random, text).map_err(|_| "signing failed")?;
                Ok(signed.as_ref().to_vec())
            }
            Private::Ed25519(pair) => Ok(pair.sign(text).as_ref().to_vec()),
        }
    }
}

impl UserData for Key {
    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_method("kind", |_, key, ()| Ok(key.kind.name()));
        methods.add_method("is_private", |_, key, ()| Ok(key.private.is_some()));
        methods.add_method("public", |lua, key, ()| lua.create_string(&key.public));
        methods.add_method("sign", |lua, key, (hash, form, text): (String, String, LuaString)| {
            Ok(match key.sign(&hash, &form, &text.as_bytes()) {
                Ok(signed) => (Some(lua.create_string(signed)?), None),
                Err(reason) => (None, Some(reason)),
            })
        });
        methods.add_method(
            "verify",
            |_, key, (hash, form, text, signed): (String, String, LuaString, LuaString)| {
                Ok(match key.verify(&hash, &form, &text.as_bytes(), &signed.as_bytes()) {
                    Ok(fits) => (Some(fits), None),
                    Err(reason) => (None, Some(reason)),
                })
            },
        );
    }
}

/// The native group.
pub(super) fn add_native(lua: &Lua, group: &Table) -> Result<()> {
    group.raw_set(
        "load",
        function(lua, "load", |_, text: LuaString| {
            Ok(match load(&text.as_bytes()) {
                Ok(key) => (Some(key), None),
                Err(reason) => (None, Some(reason)),
            })
        })?,
    )?;
    group.raw_set(
        "certificate",
        function(lua, "certificate", |lua, text: LuaString| certificate(lua, &text.as_bytes()))?,
    )
}

/// The fields of a certificate; `nil` if the text is not one.
fn certificate(lua: &Lua, text: &[u8]) -> Result<Option<Table>> {
    if text.len() > LONGEST {
        return Err(Error::runtime("the certificate is too long"));
    }
    let der = read_pem(text).map_or_else(|| text.to_vec(), |(_, der)| der);
    let Ok((_, found)) = X509Certificate::from_der(&der) else { return Ok(None) };
    let fields = lua.create_table()?;
    fields.raw_set("subject", found.subject().to_string())?;
    fields.raw_set("issuer", found.issuer().to_string())?;
    fields.raw_set("not_before", found.validity().not_before.timestamp())?;
    fields.raw_set("not_after", found.validity().not_after.timestamp())?;
    fields.raw_set("serial", found.raw_serial_as_string().replace(':', ""))?;
    fields.raw_set("version", found.version().0 + 1)?;
    fields.raw_set("public", lua.create_string(found.tbs_certificate.subject_pki.raw)?)?;
    fields.raw_set("der", lua.create_string(&der)?)?;
    Ok(Some(fields))
}
