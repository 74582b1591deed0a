//! Fields of a client certificate.

use std::fmt::Write;

use rustls::pki_types::CertificateDer;
use sdk::client::ClientCertificate;
use x509_parser::objects::{oid_registry, oid2abbrev};
use x509_parser::x509::X509Name;

pub(super) fn read(der: &CertificateDer<'_>) -> Option<ClientCertificate> {
    let (_, read) = x509_parser::parse_x509_certificate(der).ok()?;
    let validity = read.validity();
    let time = |time: &x509_parser::time::ASN1Time| {
        let at = time.to_datetime();
        let (month, day) = (&at.month().to_string()[..3], at.day());
        format!("{month} {day:2} {:02}:{:02}:{:02} {} GMT", at.hour(), at.minute(), at.second(), at.year())
    };
    Some(ClientCertificate {
        subject: distinguished(read.subject()),
        issuer: distinguished(read.issuer()),
        serial: upper_hex(read.raw_serial()),
        fingerprint: lower_hex(
            aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY, der).as_ref(),
        ),
        not_before: time(&validity.not_before),
        not_after: time(&validity.not_after),
        ends: validity.not_after.timestamp(),
        der: der.to_vec(),
    })
}

/// The subject and the issuer.
pub(super) fn names(der: &CertificateDer<'_>) -> Option<(String, String)> {
    let (_, read) = x509_parser::parse_x509_certificate(der).ok()?;
    Some((distinguished(read.subject()), distinguished(read.issuer())))
}

/// Formats a name as in RFC 2253: the most specific part first.
fn distinguished(name: &X509Name<'_>) -> String {
    let mut out = String::new();
    let parts: Vec<_> = name.iter_rdn().collect();
    for (at, part) in parts.into_iter().rev().enumerate() {
        if at > 0 {
            out.push(',');
        }
        for (at, attribute) in part.iter().enumerate() {
            if at > 0 {
                out.push('+');
            }
            let kind = attribute.attr_type();
            match oid2abbrev(kind, oid_registry()) {
                Ok(short) => out.push_str(short),
                Err(_) => out.push_str(&kind.to_id_string()),
            }
            out.push('=');
            escape(attribute.as_str().unwrap_or_default(), &mut out);
        }
    }
    out
}

fn escape(value: &str, out: &mut String) {
    let last = value.chars().count().saturating_sub(1);
    for (at, char) in value.chars().enumerate() {
        let edge = char == ' ' && (at == 0 || at == last) || char == '#' && at == 0;
        if edge || matches!(char, ',' | '+' | '"' | '\\' | '<' | '>' | ';') {
            out.push('\\');
        }
        match char {
            ' '..='~' => out.push(char),
            other => {
                for byte in other.to_string().bytes() {
                    let _ = write!(out, "\\{byte:02X}");
                }
            }
        }
    }
}

fn upper_hex(bytes: &[u8]) -> String {
    // Numbers are printed without the leading zero that keeps them positive.
    let bytes = match bytes {
        [0, rest @ ..] if !rest.is_empty() => rest,
        bytes => bytes,
    };
    bytes.iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02X}");
        out
    })
}

fn lower_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

#[cfg(test)]
mod tests {
    use x509_parser::prelude::FromDer;

    use super::*;

    #[test]
    fn special_characters_in_names_are_escaped() {
        let escaped = |value: &str| {
            let mut out = String::new();
            escape(value, &mut out);
            out
        };
        for (value, expected) in [
            ("a b", "a b"),
            (" a ", "\\ a\\ "),
            ("#a#", "\\#a#"),
            ("a,b+c\"d\\e<f>g;", "a\\,b\\+c\\\"d\\\\e\\<f\\>g\\;"),
            ("é\n", "\\C3\\A9\\0A"),
            ("", ""),
        ] {
            assert_eq!(escaped(value), expected);
        }
    }

    #[test]
    fn parts_of_a_name_with_several_attributes_are_joined() {
        let attribute = |kind: u8, value: u8| [0x30, 8, 6, 3, 0x55, 4, kind, 0x0C, 1, value];
        let (name, company, country) = (attribute(3, b'a'), attribute(10, b'b'), attribute(6, b'c'));
        let der = [&[0x30, 34, 0x31, 10][..], &country, &[0x31, 20], &name, &company].concat();
        let (_, read) = X509Name::from_der(&der).unwrap();
        assert_eq!(distinguished(&read), "CN=a+O=b,C=c");
    }

    #[test]
    fn a_serial_is_written_as_a_number() {
        for (bytes, expected) in
            [(&[0, 0xAB, 1][..], "AB01"), (&[0], "00"), (&[0x0F, 0], "0F00"), (&[0, 0], "00"), (&[], "")]
        {
            assert_eq!(upper_hex(bytes), expected);
        }
    }
}
