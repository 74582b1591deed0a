#!/bin/sh
# Makes the certificates of the tests anew, valid for a hundred years. Needs openssl.
set -eu
cd "$(dirname "$0")"
days=36500

# key NAME KIND: a private key; KIND is ec or rsa.
key() {
    case "$2" in
    ec) openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1.key" ;;
    rsa) openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out "$1.key" ;;
    esac
}

# authority NAME: a self-signed authority.
authority() {
    key "$1" ec
    openssl req -x509 -new -key "$1.key" -days $days -subj "/O=Sluice tests/CN=$1" -out "$1.crt" \
        -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign
}

# leaf NAME KIND ISSUER EXTENSIONS [DAYS]: a certificate signed by ISSUER.
leaf() {
    key "$1" "$2"
    printf '%b' "$4" > ext.tmp
    openssl req -new -key "$1.key" -subj "/O=Sluice tests/CN=$1" -out csr.tmp
    # shellcheck disable=SC2086
    openssl x509 -req -in csr.tmp -CA "$3.crt" -CAkey "$3.key" -CAcreateserial -extfile ext.tmp \
        ${5:--days $days} -out "$1.crt"
    rm csr.tmp ext.tmp
}

authority ca
authority other-ca
leaf server-ec ec ca 'subjectAltName=DNS:server.test,DNS:*.server.test,IP:127.0.0.1\n'
leaf server-rsa rsa ca 'subjectAltName=DNS:server.test,DNS:*.server.test,IP:127.0.0.1\n'
leaf another ec ca 'subjectAltName=DNS:another.test\n'
leaf client ec ca 'extendedKeyUsage=clientAuth\n'
leaf stranger ec other-ca 'extendedKeyUsage=clientAuth\n'
leaf middle-ca ec ca 'basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign\n'
leaf deep-client ec middle-ca 'extendedKeyUsage=clientAuth\n'
leaf expired ec ca 'subjectAltName=DNS:expired.test\n' '-days -1'
# Of X.509 version 1, which some libraries do not read.
openssl req -new -key server-ec.key -subj "/O=Sluice tests/CN=version-1" -out csr.tmp
openssl x509 -req -in csr.tmp -signkey server-ec.key -days $days -out version-1.crt
rm csr.tmp
rm -f ./*.srl
