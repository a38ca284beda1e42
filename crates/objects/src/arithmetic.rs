//! Striping: maps positions of a file to objects, and ranges of the file to ranges of objects.
//!
//! 1. The file is cut into units of `unit` bytes. Unit `q` is on stripe `q mod n`, as unit `q div
//!    n` of that stripe. A *row* is one unit of each stripe. All copies have the same layout, so
//!    only stripes count here.
//! 2. [`Striping::object_length`] counts the bytes before a file position that are on a stripe.
//!    Everything else follows. A range of the file is one contiguous range on each stripe, from the
//!    count at its start to the count at its end. One call for each object is therefore enough.
//! 3. With an erasure code the data objects are the stripes. Byte `x` of each parity object belongs
//!    to byte `x` of each data object, with zeros where one is shorter. The code works on blocks of
//!    [`BLOCK`] bytes, so parity objects have whole blocks.

use std::ops::Range;

use cellar_wire::object::{Scheme, Shape};

/// Bytes of each object that an erasure code processes together. A unit is a multiple of this.
pub const BLOCK: u64 = 64;

/// Distribution of bytes according to a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Striping {
    /// Stripes, or data objects of an erasure code.
    pub stripes: u64,
    /// Bytes of a unit.
    pub unit: u64,
}

/// A part of a range of a file that is within one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Stripe that holds it.
    pub stripe: usize,
    /// Offset in the stripe's object.
    pub offset: u64,
    /// Position in the file.
    pub position: u64,
    /// Length, bytes.
    pub length: u64,
}

impl Striping {
    /// Returns the striping of a shape.
    #[must_use]
    pub fn of(shape: &Shape) -> Self {
        Self {
            stripes: u64::from(shape.stripes.max(1)),
            unit: u64::from(shape.unit.max(1)),
        }
    }

    /// Size of a row, which is a unit of each stripe, bytes.
    #[must_use]
    pub fn row(&self) -> u64 {
        self.stripes * self.unit
    }

    /// Returns the stripe of a byte of the file, and its offset in the stripe's object.
    #[must_use]
    pub fn locate(&self, position: u64) -> (usize, u64) {
        let unit = position / self.unit;
        let stripe = unit % self.stripes;
        let offset = unit / self.stripes * self.unit + position % self.unit;
        (stripe as usize, offset)
    }

    /// Returns the file position of the byte at `offset` of a stripe's object.
    #[must_use]
    pub fn position(&self, stripe: usize, offset: u64) -> u64 {
        (offset / self.unit * self.stripes + stripe as u64) * self.unit + offset % self.unit
    }

    /// Returns the length of a stripe's object if the file has that length and no hole at its end.
    /// It is the number of the file's bytes on the stripe.
    #[must_use]
    pub fn object_length(&self, stripe: usize, file_length: u64) -> u64 {
        let units = file_length / self.unit;
        let rest = match (stripe as u64).cmp(&(units % self.stripes)) {
            std::cmp::Ordering::Less => self.unit,
            std::cmp::Ordering::Equal => file_length % self.unit,
            std::cmp::Ordering::Greater => 0,
        };
        units / self.stripes * self.unit + rest
    }

    /// Returns the length of each parity object of a file of that length.
    #[must_use]
    pub fn parity_length(&self, file_length: u64) -> u64 {
        // The first stripe has the longest object.
        self.object_length(0, file_length).next_multiple_of(BLOCK)
    }

    /// Returns the part of a range of the file that a stripe's object holds. May be empty.
    #[must_use]
    pub fn object_range(&self, stripe: usize, range: &Range<u64>) -> Range<u64> {
        self.object_length(stripe, range.start)..self.object_length(stripe, range.end)
    }

    /// Returns the bytes of the file's row `row` on a stripe that correspond to an offset range
    /// within units.
    #[must_use]
    pub fn in_row(&self, row: u64, stripe: usize, columns: &Range<u64>) -> Range<u64> {
        let start = row * self.row() + stripe as u64 * self.unit;
        start + columns.start..start + columns.end
    }

    /// Returns the piece at `position`, which ends with its unit or at `end`.
    #[must_use]
    pub fn piece(&self, position: u64, end: u64) -> Piece {
        let (stripe, offset) = self.locate(position);
        let left_of_unit = self.unit - position % self.unit;
        Piece {
            stripe,
            offset,
            position,
            length: left_of_unit.min(end.saturating_sub(position)),
        }
    }

    /// Returns the pieces of a range, in the order of the file.
    pub fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = Piece> + use<> {
        let striping = *self;
        let mut position = range.start;
        std::iter::from_fn(move || {
            let piece = (position < range.end).then(|| striping.piece(position, range.end))?;
            position += piece.length;
            Some(piece)
        })
    }

    /// Returns the columns (offsets within a unit, whole blocks) of row `row` that a range of the
    /// file touches. If the range crosses the end of a unit, these are all columns, since the
    /// touched ones are not contiguous.
    #[must_use]
    pub fn columns(&self, row: u64, range: &Range<u64>) -> Range<u64> {
        let begin = row * self.row();
        let start = range.start.max(begin);
        let end = range.end.min(begin + self.row());
        if start >= end {
            return 0..0;
        }
        if start / self.unit != (end - 1) / self.unit {
            return 0..self.unit;
        }
        let last = (end - 1) % self.unit + 1;
        start % self.unit / BLOCK * BLOCK..last.next_multiple_of(BLOCK)
    }
}

/// Returns the stripe of an object of a layout, by its place in the layout's list; `None` for
/// parity.
#[must_use]
pub fn stripe_of(shape: &Shape, place: usize) -> Option<usize> {
    let stripes = shape.stripes.max(1) as usize;
    match shape.scheme {
        Scheme::Striped => Some(place % stripes),
        Scheme::Erasure => (place < stripes).then_some(place),
    }
}

/// Returns the places of the copies of a stripe.
pub fn copies_of(shape: &Shape, stripe: usize) -> impl Iterator<Item = usize> + use<> {
    let stripes = shape.stripes as usize;
    let copies = match shape.scheme {
        Scheme::Striped => shape.copies as usize,
        Scheme::Erasure => 1,
    };
    (0..copies).map(move |copy| copy * stripes + stripe)
}

/// Returns the length of the object at a place if the file has that length and no hole at its end.
#[must_use]
pub fn length_at(shape: &Shape, place: usize, file_length: u64) -> u64 {
    let striping = Striping::of(shape);
    match stripe_of(shape, place) {
        Some(stripe) => striping.object_length(stripe, file_length),
        None => striping.parity_length(file_length),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reference implementation, byte by byte: for each stripe the file positions that it holds, in
    /// order.
    fn naive(striping: &Striping, length: u64) -> Vec<Vec<u64>> {
        let mut objects = vec![Vec::new(); striping.stripes as usize];
        for position in 0..length {
            let stripe = position / striping.unit % striping.stripes;
            objects[stripe as usize].push(position);
        }
        objects
    }

    fn all() -> impl Iterator<Item = Striping> {
        let stripes = [1, 2, 3, 4, 5, 7, 8, 32];
        let units = [1, 2, 3, 4, 8];
        stripes.into_iter().flat_map(move |stripes| {
            units
                .into_iter()
                .map(move |unit| Striping { stripes, unit })
        })
    }

    #[test]
    fn bytes_are_where_counting_puts_them() {
        for striping in all() {
            let length = striping.row() * 2 + 5;
            let objects = naive(&striping, length);
            for (stripe, object) in objects.iter().enumerate() {
                for (offset, position) in object.iter().enumerate() {
                    assert_eq!(striping.locate(*position), (stripe, offset as u64));
                    assert_eq!(striping.position(stripe, offset as u64), *position);
                }
            }
        }
    }

    #[test]
    fn objects_are_as_long_as_what_lies_there() {
        for striping in all() {
            for length in 0..striping.row() * 2 + 3 {
                let objects = naive(&striping, length);
                for (stripe, object) in objects.iter().enumerate() {
                    assert_eq!(
                        striping.object_length(stripe, length),
                        object.len() as u64,
                        "{striping:?} {length}"
                    );
                }
            }
        }
    }

    #[test]
    fn ranges_and_pieces_are_those_of_counting() {
        for striping in all().filter(|striping| striping.row() <= 32) {
            let length = striping.row() * 2 + 2;
            let objects = naive(&striping, length);
            for start in 0..length {
                for end in start..=length {
                    let range = start..end;
                    for (stripe, object) in objects.iter().enumerate() {
                        let has: Vec<u64> = (0..object.len() as u64)
                            .filter(|offset| range.contains(&object[*offset as usize]))
                            .collect();
                        let said = striping.object_range(stripe, &range);
                        assert_eq!(said.clone().collect::<Vec<_>>(), has);
                    }
                    let mut position = start;
                    for piece in striping.pieces(range.clone()) {
                        assert_eq!(piece.position, position);
                        for byte in 0..piece.length {
                            let at = (piece.stripe, piece.offset + byte);
                            assert_eq!(striping.locate(position + byte), at);
                        }
                        position += piece.length;
                    }
                    assert_eq!(position, end);
                }
            }
        }
    }

    #[test]
    fn columns_cover_what_a_range_touches_and_no_block_more_than_needed() {
        let striping = Striping {
            stripes: 3,
            unit: 256,
        };
        for start in (0..striping.row() * 2).step_by(17) {
            for end in (start + 1..=striping.row() * 2).step_by(23) {
                for row in 0..2 {
                    let range = start..end;
                    let columns = striping.columns(row, &range);
                    assert!(columns.end <= striping.unit);
                    assert_eq!((columns.start % BLOCK, columns.end % BLOCK), (0, 0));
                    let touched: Vec<u64> = (row * striping.row()..(row + 1) * striping.row())
                        .filter(|position| range.contains(position))
                        .map(|position| position % striping.unit)
                        .collect();
                    assert_eq!(touched.is_empty(), columns.is_empty());
                    assert!(touched.iter().all(|column| columns.contains(column)));
                    let one_unit = touched.len() as u64 <= striping.unit
                        && touched.windows(2).all(|pair| pair[0] + 1 == pair[1]);
                    if let (true, Some(first), Some(last)) =
                        (one_unit, touched.first(), touched.last())
                        && striping.columns(row, &range) != (0..striping.unit)
                    {
                        assert!(columns.start + BLOCK > *first && columns.end <= *last + BLOCK);
                    }
                }
            }
        }
    }

    #[test]
    fn parity_is_as_long_as_the_longest_data_in_whole_blocks() {
        let striping = Striping {
            stripes: 4,
            unit: 4096,
        };
        assert_eq!(striping.parity_length(0), 0);
        assert_eq!(striping.parity_length(1), 64);
        assert_eq!(striping.parity_length(4096 * 4), 4096);
        assert_eq!(striping.parity_length(4096 * 4 + 65), 4096 + 128);
    }
}
