//! The little of DER and of OCSP (RFC 6960) that stapling needs.

use control::Stapling;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OID: u8 = 0x06;
const ENUMERATED: u8 = 0x0a;
const GENERALIZED_TIME: u8 = 0x18;

/// `AlgorithmIdentifier` of SHA-1, which is how certificates are named in requests (RFC 5019).
const SHA1: &[u8] = &[0x06, 0x05, 0x2b, 0x0e, 0x03, 0x02, 0x1a, 0x05, 0x00];
/// `id-pkix-ocsp-basic`
const BASIC: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x01, 0x01];
/// `id-kp-OCSPSigning`
const OCSP_SIGNING: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x09];
/// `id-ad-ocsp`
const OCSP_ACCESS: &str = "1.3.6.1.5.5.7.48.1";

/// How far clocks may be apart, in seconds.
const SKEW: i64 = 300;

/// A certificate as responders are asked for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Where to ask.
    pub url: String,
    /// The content of a `CertID`.
    id: Vec<u8>,
    issuer: CertificateDer<'static>,
}

/// A response that may be stapled.
#[derive(Debug, PartialEq, Eq)]
pub struct Staple {
    /// When there will be a newer one, in seconds since 1970.
    pub next_update: Option<i64>,
}

/// Elements one after another.
struct Reader<'a>(&'a [u8]);

/// One element.
#[derive(Clone, Copy)]
struct Element<'a> {
    tag: u8,
    content: &'a [u8],
    /// With tag and length.
    whole: &'a [u8],
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<u8> {
        self.0.first().copied()
    }

    fn any(&mut self) -> Option<Element<'a>> {
        let (&tag, rest) = self.0.split_first()?;
        // Long tags do not occur here.
        if tag & 0x1f == 0x1f {
            return None;
        }
        let (&first, mut rest) = rest.split_first()?;
        let length = match first {
            0..=0x7f => usize::from(first),
            0x81..=0x84 => {
                let (bytes, after) = rest.split_at_checked(usize::from(first & 0x7f))?;
                rest = after;
                bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte))
            }
            _ => return None,
        };
        let (content, after) = rest.split_at_checked(length)?;
        let whole = &self.0[..self.0.len() - after.len()];
        self.0 = after;
        Some(Element { tag, content, whole })
    }

    fn next(&mut self, tag: u8) -> Option<Element<'a>> {
        self.any().filter(|element| element.tag == tag)
    }

    fn optional(&mut self, tag: u8) -> Option<Option<Element<'a>>> {
        if self.peek() == Some(tag) { self.any().map(Some) } else { Some(None) }
    }
}

fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut out = vec![tag];
    match length {
        0..=0x7f => out.push(length as u8),
        _ => {
            let bytes = length.to_be_bytes();
            let bytes = &bytes[bytes.iter().position(|byte| *byte != 0).unwrap_or(bytes.len())..];
            out.push(0x80 | bytes.len() as u8);
            out.extend_from_slice(bytes);
        }
    }
    parts.iter().for_each(|part| out.extend_from_slice(part));
    out
}

impl Question {
    /// Makes the question for a certificate.
    ///
    /// # Errors
    /// The certificate names no responder, or the chain lacks its issuer; in words.
    pub fn of(stapling: &Stapling) -> Result<Question, String> {
        let unreadable = |_| "failed to get ocsp url: the certificate cannot be read".to_owned();
        let chain = &stapling.chain;
        let own = chain.first().ok_or("failed to get ocsp url: there is no certificate")?;
        let (_, own) = X509Certificate::from_der(own).map_err(unreadable)?;
        let url = responder(&own)
            .ok_or("failed to get ocsp url: cert not contains authority_information_access extension")?;
        let issuer = chain.get(1).ok_or(
            "failed to get ocsp url: no issuer certificate in chain: put it behind the certificate in `cert`",
        )?;
        let (_, read) = X509Certificate::from_der(issuer).map_err(unreadable)?;
        if read.subject().as_raw() != own.issuer().as_raw() {
            return Err("failed to get ocsp url: issuer certificate not next to leaf".to_owned());
        }
        let id = [
            element(SEQUENCE, &[SHA1]),
            element(OCTET_STRING, &[&sha1(read.subject().as_raw())]),
            element(OCTET_STRING, &[&sha1(&read.public_key().subject_public_key.data)]),
            element(INTEGER, &[own.raw_serial()]),
        ];
        Ok(Question { url, id: id.concat(), issuer: issuer.clone() })
    }

    /// An `OCSPRequest` without a nonce, so that responders may answer what they have.
    pub fn request(&self) -> Vec<u8> {
        let id = element(SEQUENCE, &[&self.id]);
        let list = element(SEQUENCE, &[&element(SEQUENCE, &[&id])]);
        element(SEQUENCE, &[&element(SEQUENCE, &[&list])])
    }

    /// Looks whether a response answers this, `now` in seconds since 1970. Without `verify` it needs no valid
    /// signature and may say that the certificate is revoked.
    ///
    /// # Errors
    /// Why it may not be stapled.
    pub fn check(
        &self,
        response: &[u8],
        verify: bool,
        now: i64,
        algorithms: &WebPkiSupportedAlgorithms,
    ) -> Result<Staple, String> {
        let basic = basic(response)?;
        let broken = || "failed to validate ocsp response: it cannot be read".to_owned();
        let signed = signed(basic).ok_or_else(broken)?;
        let one = single(signed.data, &self.id).ok_or_else(broken)?;
        let one = one.ok_or("failed to validate ocsp response: it is about another certificate")?;
        if let Some(next) = one.next_update
            && next <= now
        {
            return Err("failed to validate ocsp response: it has expired (nextUpdate)".to_owned());
        }
        if !verify {
            return Ok(Staple { next_update: one.next_update });
        }
        if one.this_update > now + SKEW {
            return Err("failed to validate ocsp response: it is of the future (thisUpdate)".to_owned());
        }
        match one.status {
            Status::Good => {}
            Status::Revoked => {
                return Err(
                    "failed to validate ocsp response: certificate status \"revoked\" in the OCSP response"
                        .to_owned(),
                );
            }
            Status::Unknown => {
                return Err(
                    "failed to validate ocsp response: certificate status \"unknown\" in the OCSP response"
                        .to_owned(),
                );
            }
        }
        self.check_signature(&signed, now, algorithms)?;
        Ok(Staple { next_update: one.next_update })
    }

    /// Checks the signature: by the issuer, or by the key of a certificate that it issued for OCSP.
    fn check_signature(
        &self,
        signed: &Signed<'_>,
        now: i64,
        algorithms: &WebPkiSupportedAlgorithms,
    ) -> Result<(), String> {
        if is_signed_by(signed, &self.issuer, algorithms) {
            return Ok(());
        }
        let anchor = anchor_from_trusted_cert(&self.issuer)
            .map_err(|error| format!("failed to validate ocsp response: the issuer: {error}"))?;
        let time = UnixTime::since_unix_epoch(std::time::Duration::from_secs(now.try_into().unwrap_or(0)));
        let certified = |der: &CertificateDer<'_>| {
            EndEntityCert::try_from(der).is_ok_and(|cert| {
                let anchors = [anchor.clone()];
                let usage = KeyUsage::required(OCSP_SIGNING);
                cert.verify_for_usage(algorithms.all, &anchors, &[], time, usage, None, None).is_ok()
            })
        };
        let mut certificates = Reader(signed.certificates);
        // A response needs only a few; more are ignored.
        for _ in 0..8 {
            let Some(certificate) = certificates.next(SEQUENCE) else { break };
            let certificate = CertificateDer::from(certificate.whole);
            if certified(&certificate) && is_signed_by(signed, &certificate, algorithms) {
                return Ok(());
            }
        }
        Err("failed to validate ocsp response: neither the issuer nor a certificate that it issued for OCSP signed it"
            .to_owned())
    }
}

/// The responder that a certificate names.
fn responder(certificate: &X509Certificate<'_>) -> Option<String> {
    certificate.extensions().iter().find_map(|extension| {
        let ParsedExtension::AuthorityInfoAccess(access) = extension.parsed_extension() else { return None };
        access.accessdescs.iter().find_map(|one| match &one.access_location {
            GeneralName::URI(url) if one.access_method.to_id_string() == OCSP_ACCESS => {
                Some((*url).to_owned())
            }
            _ => None,
        })
    })
}

fn sha1(bytes: &[u8]) -> Vec<u8> {
    use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
    digest(&SHA1_FOR_LEGACY_USE_ONLY, bytes).as_ref().to_vec()
}

/// The `BasicOCSPResponse` in a response.
fn basic(response: &[u8]) -> Result<&[u8], String> {
    let read = || {
        let mut reader = Reader(Reader(response).next(SEQUENCE)?.content);
        let status = *reader.next(ENUMERATED)?.content.first()?;
        Some((status, reader))
    };
    let (status, mut reader) = read().ok_or("failed to validate ocsp response: not an OCSP response")?;
    let words =
        ["", "malformed request", "internal error", "try later", "", "signature required", "unauthorized"];
    if status != 0 {
        let word = words.get(usize::from(status)).copied().filter(|word| !word.is_empty());
        return Err(format!(
            "failed to validate ocsp response: the responder says: {}",
            word.map_or_else(|| status.to_string(), str::to_owned)
        ));
    }
    let content = || {
        let mut bytes = Reader(Reader(reader.next(0xa0)?.content).next(SEQUENCE)?.content);
        let kind = bytes.next(OID)?;
        let content = bytes.next(OCTET_STRING)?;
        (kind.content == BASIC).then_some(content.content)
    };
    let mut content = content;
    content().ok_or_else(|| "failed to validate ocsp response: it is of an unknown kind".to_owned())
}

struct Signed<'a> {
    /// `ResponseData`, as it is signed and its content.
    whole: &'a [u8],
    data: &'a [u8],
    algorithm: &'a [u8],
    signature: &'a [u8],
    certificates: &'a [u8],
}

fn signed(basic: &[u8]) -> Option<Signed<'_>> {
    let mut reader = Reader(Reader(basic).next(SEQUENCE)?.content);
    let data = reader.next(SEQUENCE)?;
    let algorithm = reader.next(SEQUENCE)?.content;
    let signature = bits(reader.next(BIT_STRING)?.content)?;
    let certificates = match reader.optional(0xa0)? {
        Some(list) => Reader(list.content).next(SEQUENCE)?.content,
        None => &[],
    };
    Some(Signed { whole: data.whole, data: data.content, algorithm, signature, certificates })
}

/// A bit string of whole bytes.
fn bits(content: &[u8]) -> Option<&[u8]> {
    content.split_first().filter(|(unused, _)| **unused == 0).map(|(_, bytes)| bytes)
}

enum Status {
    Good,
    Revoked,
    Unknown,
}

struct Single {
    status: Status,
    this_update: i64,
    next_update: Option<i64>,
}

/// Returns the entry of a `ResponseData` for a certificate; the inner `None` if it lacks one.
fn single(data: &[u8], id: &[u8]) -> Option<Option<Single>> {
    let mut reader = Reader(data);
    reader.optional(0xa0)?;
    // The responder, by name or by key. The signature shows whether it may answer.
    reader.any().filter(|who| matches!(who.tag, 0xa1 | 0xa2))?;
    reader.next(GENERALIZED_TIME)?;
    let mut responses = Reader(reader.next(SEQUENCE)?.content);
    while !responses.0.is_empty() {
        let mut one = Reader(responses.next(SEQUENCE)?.content);
        let about = one.next(SEQUENCE)?.content;
        let status = match one.any()?.tag {
            0x80 => Status::Good,
            0xa1 => Status::Revoked,
            0x82 => Status::Unknown,
            _ => return None,
        };
        let this_update = time(one.next(GENERALIZED_TIME)?)?;
        let next_update = match one.optional(0xa0)? {
            Some(next) => Some(time(Reader(next.content).next(GENERALIZED_TIME)?)?),
            None => None,
        };
        if is_same(about, id)? {
            return Some(Some(Single { status, this_update, next_update }));
        }
    }
    Some(None)
}

/// Whether two `CertID`s are the same. The parameters of a digest may be left out.
fn is_same(one: &[u8], other: &[u8]) -> Option<bool> {
    let parts = |id| {
        let mut reader = Reader(id);
        let digest = Reader(reader.next(SEQUENCE)?.content).next(OID)?.content;
        Some((digest, reader.0))
    };
    Some(parts(one)? == parts(other)?)
}

/// Seconds since 1970.
fn time(element: Element<'_>) -> Option<i64> {
    let (rest, time) = x509_parser::time::ASN1Time::from_der(element.whole).ok()?;
    rest.is_empty().then(|| time.timestamp())
}

fn is_signed_by(
    signed: &Signed<'_>,
    certificate: &CertificateDer<'_>,
    algorithms: &WebPkiSupportedAlgorithms,
) -> bool {
    let Ok((_, read)) = X509Certificate::from_der(certificate) else { return false };
    let key = || {
        let mut reader = Reader(Reader(read.public_key().raw).next(SEQUENCE)?.content);
        Some((reader.next(SEQUENCE)?.content, bits(reader.next(BIT_STRING)?.content)?))
    };
    let Some((kind, key)) = key() else { return false };
    algorithms.all.iter().any(|one| {
        *one.signature_alg_id() == *signed.algorithm
            && *one.public_key_alg_id() == *kind
            && one.verify_signature(key, signed.whole, signed.signature).is_ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_read_as_they_were_written() {
        for length in [0, 1, 127, 128, 255, 256, 70_000] {
            let content = vec![7; length];
            let whole = element(OCTET_STRING, &[&content]);
            let read = Reader(&whole).next(OCTET_STRING).unwrap();
            assert_eq!((read.content, read.whole), (&content[..], &whole[..]));
            for cut in [0, 1, whole.len() - 1] {
                assert!(length == 0 && cut == 2 || Reader(&whole[..cut]).any().is_none(), "{length} {cut}");
            }
        }
        for broken in [
            &[0x30, 0x80][..],
            &[0x30, 0x85, 1, 1, 1, 1, 1],
            &[0x1f, 1, 1],
            &[0x30, 0x84, 255, 255, 255, 255],
        ] {
            assert!(Reader(broken).any().is_none());
        }
    }

    #[test]
    fn what_is_no_response_is_refused() {
        let issuer = CertificateDer::from(vec![0]);
        let question = Question { url: String::new(), id: Vec::new(), issuer };
        let algorithms = rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms;
        let refused = |bytes: &[u8]| question.check(bytes, false, 0, &algorithms).unwrap_err();
        assert!(refused(b"").ends_with("not an OCSP response"));
        assert!(refused(b"<html>").ends_with("not an OCSP response"));
        assert!(refused(&[0x30, 3, 10, 1, 3]).ends_with("the responder says: try later"));
        assert!(refused(&[0x30, 3, 10, 1, 0]).ends_with("of an unknown kind"));
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..10_000 {
            let bytes: Vec<u8> = (0..random.usize(..60)).map(|_| random.u8(..) & random.u8(..)).collect();
            refused(&bytes);
        }
    }
}
