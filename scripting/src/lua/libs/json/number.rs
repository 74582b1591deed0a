//! Numbers as C's `%.14g` writes them.

/// Writes a number with at most `precision` digits, without trailing zeros.
pub(in super::super) fn shortest(number: f64, precision: usize) -> String {
    let precision = precision.clamp(1, 17);
    if number == 0.0 {
        return if number.is_sign_negative() { "-0".to_owned() } else { "0".to_owned() };
    }
    if !number.is_finite() {
        return if number.is_nan() {
            "nan"
        } else if number > 0.0 {
            "inf"
        } else {
            "-inf"
        }
        .to_owned();
    }
    let scientific = format!("{number:.*e}", precision - 1);
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if exponent < -4 || exponent >= precision as i32 {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", trimmed(digits), exponent.unsigned_abs());
    }
    let decimals = (precision as i32 - 1 - exponent).max(0) as usize;
    trimmed(&format!("{number:.decimals$}")).to_owned()
}

fn trimmed(digits: &str) -> &str {
    match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.'),
        false => digits,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn numbers_are_written_as_in_c() {
        for (number, text) in [
            (1.0, "1"),
            (-2.5, "-2.5"),
            (0.1, "0.1"),
            (1e14, "1e+14"),
            (12_345_678_901_234.0, "12345678901234"),
            (1.0 / 3.0, "0.33333333333333"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (1e300, "1e+300"),
            (-0.0, "-0"),
        ] {
            assert_eq!(super::shortest(number, 14), text);
        }
    }
}
