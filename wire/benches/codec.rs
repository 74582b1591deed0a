//! The cost of heads and bodies: `cargo bench -p wire`.
#![allow(
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a benchmark"
)]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use wire::h1::decode::{Limits, Progress, request, response};
use wire::h1::{Chunked, hop};
use wire::{Method, RequestHead, ResponseHead};

const SMALL: &[u8] =
    b"GET /hello HTTP/1.1\r\nHost: 127.0.0.1:9080\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n\r\n";

const WRK: &[u8] = b"GET /hello HTTP/1.1\r\nHost: 127.0.0.1:9080\r\n\r\n";

const BROWSER: &[u8] = b"GET /static/app/main.js?v=20240101 HTTP/1.1\r\n\
Host: www.example.com\r\n\
Connection: keep-alive\r\n\
sec-ch-ua: \"Chromium\";v=\"124\", \"Google Chrome\";v=\"124\", \"Not-A.Brand\";v=\"99\"\r\n\
sec-ch-ua-mobile: ?0\r\n\
User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/124.0.0.0 Safari/537.36\r\n\
sec-ch-ua-platform: \"Linux\"\r\n\
Accept: */*\r\n\
Sec-Fetch-Site: same-origin\r\n\
Sec-Fetch-Mode: no-cors\r\n\
Sec-Fetch-Dest: script\r\n\
Referer: https://www.example.com/\r\n\
Accept-Encoding: gzip, deflate, br, zstd\r\n\
Accept-Language: en-GB,en;q=0.9,de;q=0.8\r\n\
Cookie: _ga=GA1.2.1234567890.1700000000; session=eyJhbGciOiJIUzI1NiJ9.e30.ZRrHA1JJJW8opsbCGfG_HACGpVUMN_a9IV7pAx_Zmeo\r\n\
\r\n";

const NGINX: &[u8] = b"HTTP/1.1 200 OK\r\n\
Server: nginx/1.22.1\r\n\
Date: Sat, 01 Jan 2022 00:00:00 GMT\r\n\
Content-Type: application/octet-stream\r\n\
Content-Length: 4000\r\n\
Last-Modified: Sat, 01 Jan 2022 00:00:00 GMT\r\n\
Connection: keep-alive\r\n\
ETag: \"61cf9980-fa0\"\r\n\
Accept-Ranges: bytes\r\n\
\r\n";

fn heads(c: &mut Criterion) {
    let limits = Limits::default();
    let mut group = c.benchmark_group("request");
    for (name, input) in [("wrk", WRK), ("small", SMALL), ("browser", BROWSER)] {
        let mut head = RequestHead::default();
        let mut progress = Progress::default();
        group.throughput(Throughput::Bytes(input.len() as u64));
        group.bench_function(name, |b| {
            b.iter(|| request(black_box(input), &mut progress, &mut head, &limits));
        });
        let mut out = Vec::new();
        group.bench_function(format!("{name} decode, strip, write"), |b| {
            b.iter(|| {
                let read = request(black_box(input), &mut progress, &mut head, &limits);
                hop::strip_request(&mut head, false);
                out.clear();
                head.fields.write_to(&mut out);
                read
            });
        });
        let mut fields = [httparse::EMPTY_HEADER; 100];
        group.bench_function(format!("{name} httparse, for scale"), |b| {
            b.iter(|| {
                let mut request = httparse::Request::new(&mut fields);
                request.parse(black_box(input)).map(|status| status.is_complete())
            });
        });
    }
    group.finish();

    let mut group = c.benchmark_group("response");
    let mut head = ResponseHead::default();
    let mut progress = Progress::default();
    group.throughput(Throughput::Bytes(NGINX.len() as u64));
    group.bench_function("nginx", |b| {
        b.iter(|| response(black_box(NGINX), &mut progress, &mut head, Method::Get, &limits));
    });
    group.finish();
}

fn chunks(c: &mut Criterion) {
    let mut group = c.benchmark_group("chunked");
    let one = [&b"fa0\r\n"[..], &[b'x'; 4000], b"\r\n0\r\n\r\n"].concat();
    let small = [b"10\r\n0123456789abcdef\r\n".repeat(250), b"0\r\n\r\n".to_vec()].concat();
    for (name, input) in [("one of 4000 bytes", one), ("250 of 16 bytes", small)] {
        let mut buf = input.clone();
        let mut body = Chunked::default();
        group.throughput(Throughput::Bytes(input.len() as u64));
        group.bench_function(name, |b| {
            b.iter(|| {
                body.reset();
                body.relay(black_box(&mut buf))
            });
        });
    }
    group.finish();
}

criterion_group!(benches, heads, chunks);
criterion_main!(benches);
