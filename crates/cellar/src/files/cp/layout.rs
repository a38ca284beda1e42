//! `--layout`: the layout of a new file's objects, as written on the command line.

use cellar_wire::object::{Scheme, Shape};

/// Parses `stripes=4,stripe-size=1M,copies=2`, or `ec=4+2` with or without `stripe-size=`.
/// Defaults: one stripe, one copy, 1 MiB.
///
/// # Errors
/// A message that says which part is wrong.
pub(super) fn parse(text: &str) -> Result<Shape, String> {
    let mut shape = Shape::default();
    let mut striped = None;
    for part in text.split(',') {
        let (key, value) = part
            .split_once('=')
            .ok_or_else(|| format!("'{part}': expected KEY=VALUE"))?;
        let number = || {
            value
                .parse::<u32>()
                .map_err(|_| format!("'{value}': not a number"))
        };
        match key {
            "stripes" => {
                shape.stripes = number()?;
                striped = Some(key);
            }
            "copies" => {
                shape.copies = number()?;
                striped = Some(key);
            }
            "stripe-size" => shape.unit = size(value)?,
            "ec" => {
                let wrong = || format!("'{value}': expected DATA+PARITY, for example 4+2");
                let (data, parity) = value.split_once('+').ok_or_else(wrong)?;
                shape.scheme = Scheme::Erasure;
                shape.stripes = data.parse().map_err(|_| wrong())?;
                shape.copies = parity.parse().map_err(|_| wrong())?;
            }
            _ => {
                return Err(format!(
                    "'{key}': unknown; the keys are stripes, stripe-size, copies and ec"
                ));
            }
        }
    }
    if let (Some(key), Scheme::Erasure) = (striped, shape.scheme) {
        return Err(format!("'ec' and '{key}' cannot be combined"));
    }
    shape.check().map_err(|wrong| wrong.to_string())?;
    Ok(shape)
}

fn size(text: &str) -> Result<u32, String> {
    let size = crate::quantities::size(text).and_then(|size| size.try_into().ok());
    size.ok_or_else(|| format!("'{text}': not a size"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn omitted_options_have_their_defaults() {
        let shape = parse("stripes=4,stripe-size=64K,copies=2").unwrap();
        assert_eq!((shape.scheme, shape.stripes), (Scheme::Striped, 4));
        assert_eq!((shape.unit, shape.copies), (64 << 10, 2));
        let shape = parse("ec=4+2").unwrap();
        assert_eq!((shape.scheme, shape.stripes), (Scheme::Erasure, 4));
        assert_eq!((shape.unit, shape.copies), (1 << 20, 2));
        assert_eq!(parse("copies=3").unwrap().stripes, 1);
    }

    #[test]
    fn senseless_values_are_refused() {
        for text in [
            "",
            "stripes",
            "stripes=x",
            "stripes=0",
            "stripes=33",
            "copies=5",
            "ec=4",
            "ec=4+9",
            "ec=4+2,stripes=4",
            "stripe-size=3K",
            "stripe-size=1G",
            "stripe-size=9999M",
            "size=1M",
            "ec=8+2,stripe-size=16M",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
