//! AES: CBC, CTR, ECB and GCM.

use aws_lc_rs::aead;
use aws_lc_rs::cipher::{
    self, DecryptingKey, DecryptionContext, EncryptingKey, EncryptionContext, PaddedBlockDecryptingKey,
    PaddedBlockEncryptingKey, UnboundCipherKey,
};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::iv::FixedLength;
use mlua::{Lua, LuaString, Result, Table};

use super::call::function;

/// The operations of a block cipher. The key's length decides the size.
#[derive(Clone, Copy)]
enum Mode {
    Cbc,
    Ctr,
    Ecb,
}

impl Mode {
    fn named(name: &str) -> Option<Mode> {
        match name {
            "cbc" => Some(Mode::Cbc),
            "ctr" => Some(Mode::Ctr),
            "ecb" => Some(Mode::Ecb),
            _ => None,
        }
    }
}

fn key_of(key: &[u8]) -> std::result::Result<UnboundCipherKey, Unspecified> {
    let algorithm = match key.len() {
        16 => &cipher::AES_128,
        24 => &cipher::AES_192,
        _ => &cipher::AES_256,
    };
    UnboundCipherKey::new(algorithm, key)
}

fn encrypt(
    mode: Mode,
    key: &[u8],
    iv: &[u8],
    padded: bool,
    text: &[u8],
) -> std::result::Result<Vec<u8>, Unspecified> {
    let key = key_of(key)?;
    let context = match mode {
        Mode::Ecb => EncryptionContext::None,
        _ => EncryptionContext::Iv128(FixedLength::try_from(iv)?),
    };
    let mut out = text.to_vec();
    match (mode, padded) {
        (Mode::Ctr, _) => EncryptingKey::ctr(key)?.less_safe_encrypt(&mut out, context)?,
        (Mode::Cbc, false) => EncryptingKey::cbc(key)?.less_safe_encrypt(&mut out, context)?,
        (Mode::Ecb, false) => EncryptingKey::ecb(key)?.less_safe_encrypt(&mut out, context)?,
        (Mode::Cbc, true) => {
            PaddedBlockEncryptingKey::cbc_pkcs7(key)?.less_safe_encrypt(&mut out, context)?
        }
        (Mode::Ecb, true) => {
            PaddedBlockEncryptingKey::ecb_pkcs7(key)?.less_safe_encrypt(&mut out, context)?
        }
    };
    Ok(out)
}

fn decrypt(
    mode: Mode,
    key: &[u8],
    iv: &[u8],
    padded: bool,
    text: &[u8],
) -> std::result::Result<Vec<u8>, Unspecified> {
    let key = key_of(key)?;
    let context = match mode {
        Mode::Ecb => DecryptionContext::None,
        _ => DecryptionContext::Iv128(FixedLength::try_from(iv)?),
    };
    let mut out = text.to_vec();
    let length = match (mode, padded) {
        (Mode::Ctr, _) => DecryptingKey::ctr(key)?.decrypt(&mut out, context)?.len(),
        (Mode::Cbc, false) => DecryptingKey::cbc(key)?.decrypt(&mut out, context)?.len(),
        (Mode::Ecb, false) => DecryptingKey::ecb(key)?.decrypt(&mut out, context)?.len(),
        (Mode::Cbc, true) => PaddedBlockDecryptingKey::cbc_pkcs7(key)?.decrypt(&mut out, context)?.len(),
        (Mode::Ecb, true) => PaddedBlockDecryptingKey::ecb_pkcs7(key)?.decrypt(&mut out, context)?.len(),
    };
    out.truncate(length);
    Ok(out)
}

fn gcm(key: &[u8]) -> std::result::Result<aead::LessSafeKey, Unspecified> {
    let algorithm = match key.len() {
        16 => &aead::AES_128_GCM,
        24 => &aead::AES_192_GCM,
        _ => &aead::AES_256_GCM,
    };
    aead::UnboundKey::new(algorithm, key).map(aead::LessSafeKey::new)
}

fn gcm_encrypt(
    key: &[u8],
    iv: &[u8],
    aad: &[u8],
    text: &[u8],
) -> std::result::Result<(Vec<u8>, Vec<u8>), Unspecified> {
    let nonce = aead::Nonce::try_assume_unique_for_key(iv)?;
    let mut out = text.to_vec();
    let tag = gcm(key)?.seal_in_place_separate_tag(nonce, aead::Aad::from(aad), &mut out)?;
    Ok((out, tag.as_ref().to_vec()))
}

fn gcm_decrypt(
    key: &[u8],
    iv: &[u8],
    aad: &[u8],
    text: &[u8],
    tag: &[u8],
) -> std::result::Result<Vec<u8>, Unspecified> {
    let nonce = aead::Nonce::try_assume_unique_for_key(iv)?;
    let mut out = [text, tag].concat();
    let length = gcm(key)?.open_in_place(nonce, aead::Aad::from(aad), &mut out)?.len();
    out.truncate(length);
    Ok(out)
}

/// The native group. A failure is `nil`; why a text cannot be decrypted is not shown.
pub(super) fn add_native(lua: &Lua, group: &Table) -> Result<()> {
    type Block = (String, LuaString, LuaString, bool, LuaString);
    for (name, call) in [("encrypt", encrypt as fn(_, &[u8], &[u8], _, &[u8]) -> _), ("decrypt", decrypt)] {
        group.raw_set(
            name,
            function(lua, name, move |lua, (mode, key, iv, padded, text): Block| {
                let Some(mode) = Mode::named(&mode) else { return Ok(None) };
                let done = call(mode, &key.as_bytes(), &iv.as_bytes(), padded, &text.as_bytes());
                done.ok().map(|text| lua.create_string(text)).transpose()
            })?,
        )?;
    }
    type Sealed = (LuaString, LuaString, LuaString, LuaString);
    group.raw_set(
        "gcm_encrypt",
        function(lua, "gcm_encrypt", |lua, (key, iv, aad, text): Sealed| {
            let sealed = gcm_encrypt(&key.as_bytes(), &iv.as_bytes(), &aad.as_bytes(), &text.as_bytes());
            Ok(match sealed {
                Ok((text, tag)) => (Some(lua.create_string(text)?), Some(lua.create_string(tag)?)),
                Err(_) => (None, None),
            })
        })?,
    )?;
    type Opened = (LuaString, LuaString, LuaString, LuaString, LuaString);
    group.raw_set(
        "gcm_decrypt",
        function(lua, "gcm_decrypt", |lua, (key, iv, aad, text, tag): Opened| {
            let [key, iv, aad, text, tag] = [key, iv, aad, text, tag].map(|text| text.as_bytes().to_vec());
            gcm_decrypt(&key, &iv, &aad, &text, &tag).ok().map(|text| lua.create_string(text)).transpose()
        })?,
    )
}
