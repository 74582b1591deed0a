//! Numbers as Lua writes them.

use std::fmt::Write;

/// Significant digits of a number that Lua makes a text of: `%.14g`.
const DIGITS: i32 = 14;

/// Appends the number as `tostring` and cjson write it.
pub(crate) fn write_number(number: f64, out: &mut String) {
    if number.is_nan() {
        out.push_str("nan");
        return;
    }
    let text = format!("{number:.*e}", DIGITS as usize - 1);
    // The form of Rust's `e` is always digits, `e` and a whole exponent.
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..DIGITS).contains(&exponent) {
        let fixed = format!("{number:.*}", (DIGITS - 1 - exponent) as usize);
        out.push_str(trimmed(&fixed));
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        let _ = write!(out, "{}e{sign}{:02}", trimmed(digits), exponent.abs());
    }
}

/// Without zeros that say nothing.
fn trimmed(number: &str) -> &str {
    if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_fourteen_digits_at_most() {
        for (number, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (-2.5, "-2.5"),
            (0.16098306018449, "0.16098306018449"),
            (0.067601040039328, "0.067601040039328"),
            (1.0 / 3.0, "0.33333333333333"),
            (2643119624.0, "2643119624"),
            (9.8765e-5, "9.8765e-05"),
            (1e14, "1e+14"),
            (123456789012345680.0, "1.2345678901235e+17"),
            (99999999999999.0, "99999999999999"),
            (999999999999999.0, "1e+15"),
            (9999.9999999999999, "10000"),
            (1e-300, "1e-300"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
        ] {
            let mut out = String::new();
            write_number(number, &mut out);
            assert_eq!(out, text, "{number:?}");
        }
    }
}
