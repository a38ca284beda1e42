//! Erasure code: computes parity from data shards, and missing shards from others.
//!
//! 1. Reed-Solomon over GF(2^16) by `reed-solomon-simd`: any `data` of the `data + parity` shards
//!    determine all of them. The code is systematic (data shards are the bytes themselves) and
//!    linear. If all data is zero, parity is zero, so a hole needs no object.
//! 2. It processes each [`BLOCK`] of 64 bytes separately: the parity of a range of columns is that
//!    range of the parity. A store of a few bytes therefore needs only these columns of the row,
//!    and encoding proceeds in slices that fit in the processor's cache.
//! 3. The library's decoding costs about 0.3 ms, even for little data. It is therefore called once
//!    to find the result of a one in each shard. With these factors a missing shard is a sum of
//!    products. That is several times faster for the few missing shards here, and runs in the cache
//!    too.
//!
//! The bytes of parity are a storage format: devices keep them for years. A test ensures that they
//! never change.

use bytes::Bytes;
use cellar_wire::object::{Scheme, Shape};
use reed_solomon_simd::engine::{DefaultEngine, Engine as _, GfElement, tables};
use reed_solomon_simd::{ReedSolomonDecoder, ReedSolomonEncoder};

pub use crate::arithmetic::BLOCK;

/// Bytes of each shard that are encoded together.
const SLICE_BYTES: usize = 32 << 10;

/// Reason why shards could not be computed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the erasure code refuses: {0}")]
pub struct CodeError(#[from] reed_solomon_simd::Error);

/// The code of a shape, with its working memory.
pub struct Code {
    data: usize,
    parity: usize,
    encoder: Option<(usize, ReedSolomonEncoder)>,
    engine: DefaultEngine,
    /// The factors used last.
    known: Option<Factors>,
}

impl Code {
    /// Returns the code of an erasure shape; `None` for others.
    #[must_use]
    pub fn of(shape: &Shape) -> Option<Self> {
        (shape.scheme == Scheme::Erasure)
            .then(|| Self::new(shape.stripes as usize, shape.copies as usize))
    }

    /// Creates a code with these numbers of data and parity shards, at least one of each.
    #[must_use]
    pub fn new(data: usize, parity: usize) -> Self {
        Self {
            data: data.max(1),
            parity: parity.max(1),
            encoder: None,
            engine: DefaultEngine::new(),
            known: None,
        }
    }

    /// Appends the parity of `shards` to `parity`. There is one shard for each data object, all of
    /// the same length of whole blocks, and one buffer for each parity object.
    ///
    /// # Errors
    /// The number or length of the shards is wrong.
    pub fn encode(
        &mut self,
        shards: &[impl AsRef<[u8]>],
        parity: &mut [Vec<u8>],
    ) -> Result<(), CodeError> {
        let length = shards.first().map_or(0, |shard| shard.as_ref().len());
        let mut done = 0;
        while done < length {
            let slice = (length - done).min(SLICE_BYTES);
            let encoder = self.encoder(slice)?;
            for shard in shards {
                let bytes = shard.as_ref().get(done..done + slice).unwrap_or_default();
                encoder.add_original_shard(bytes)?;
            }
            let encoded = encoder.encode()?;
            for (out, bytes) in parity.iter_mut().zip(encoded.recovery_iter()) {
                out.extend_from_slice(bytes);
            }
            done += slice;
        }
        Ok(())
    }

    fn encoder(&mut self, slice: usize) -> Result<&mut ReedSolomonEncoder, CodeError> {
        let (data, parity) = (self.data, self.parity);
        let held = match self.encoder.take() {
            Some((length, encoder)) if length == slice => (length, encoder),
            Some((_, mut encoder)) => {
                encoder.reset(data, parity, slice)?;
                (slice, encoder)
            }
            None => (slice, ReedSolomonEncoder::new(data, parity, slice)?),
        };
        Ok(&mut self.encoder.insert(held).1)
    }

    /// Computes the shards at the places `wanted` from those of `have`, all of the same length of
    /// whole blocks. Places are those of a layout: the data, then the parity.
    ///
    /// # Errors
    /// There are fewer shards than data objects, or their lengths differ.
    pub fn reconstruct(
        &mut self,
        have: &[(usize, Bytes)],
        wanted: &[usize],
    ) -> Result<Vec<Bytes>, CodeError> {
        let mut whole: Vec<Option<Bytes>> = vec![None; self.data];
        for (place, shard) in have {
            if let Some(slot) = whole.get_mut(*place) {
                *slot = Some(shard.clone());
            }
        }
        let parity_wanted = wanted.iter().any(|place| *place >= self.data);
        let missing: Vec<usize> = (0..self.data)
            .filter(|place| whole[*place].is_none())
            .filter(|place| parity_wanted || wanted.contains(place))
            .collect();
        if !missing.is_empty() {
            // Additional shards are of no use.
            let have = have
                .get(..self.data)
                .ok_or(reed_solomon_simd::Error::NotEnoughShards {
                    original_count: self.data,
                    original_received_count: have.len(),
                    recovery_received_count: 0,
                })?;
            for (place, shard) in missing.iter().zip(self.data_of(have, &missing)?) {
                whole[*place] = Some(shard);
            }
        }
        let mut parity = Vec::new();
        if parity_wanted {
            let whole: Vec<Bytes> = whole.iter().flatten().cloned().collect();
            let length = whole.first().map_or(0, Bytes::len);
            let mut encoded = vec![Vec::with_capacity(length); self.parity];
            self.encode(&whole, &mut encoded)?;
            parity = encoded.into_iter().map(Bytes::from).collect();
        }
        let shard = |place: &usize| match place.checked_sub(self.data) {
            None => whole[*place].clone().unwrap_or_default(),
            Some(number) => parity.get(number).cloned().unwrap_or_default(),
        };
        Ok(wanted.iter().map(shard).collect())
    }

    /// Computes the data shards at the places `missing` from as many others as are needed: each is
    /// the sum of these, multiplied by their factors.
    fn data_of(
        &mut self,
        have: &[(usize, Bytes)],
        missing: &[usize],
    ) -> Result<Vec<Bytes>, CodeError> {
        let length = have.first().map_or(0, |(_, shard)| shard.len());
        if let Some((_, other)) = have.iter().find(|(_, shard)| shard.len() != length) {
            let (shard_bytes, got) = (length, other.len());
            Err(reed_solomon_simd::Error::DifferentShardSize { shard_bytes, got })?;
        }
        let factors = self.factors(have, missing)?;
        let engine = &self.engine;
        let mut made = vec![vec![0; length]; missing.len()];
        let mut product = vec![[0; BLOCK as usize]; SLICE_BYTES / BLOCK as usize];
        for begin in (0..length).step_by(SLICE_BYTES) {
            let slice = begin..(begin + SLICE_BYTES).min(length);
            for (sum, factors) in made.iter_mut().zip(&factors) {
                for ((_, shard), factor) in have.iter().zip(factors) {
                    let Some(factor) = factor else {
                        continue;
                    };
                    let (blocks, _) = shard[slice.clone()].as_chunks::<{ BLOCK as usize }>();
                    let product = &mut product[..blocks.len()];
                    product.copy_from_slice(blocks);
                    engine.mul(product, *factor);
                    let product = product.as_flattened();
                    for (sum, byte) in sum[slice.clone()].iter_mut().zip(product) {
                        *sum ^= *byte;
                    }
                }
            }
        }
        Ok(made.into_iter().map(Bytes::from).collect())
    }

    /// Returns for each missing data shard the logarithms of the factors of the available shards;
    /// `None`: 0.
    ///
    /// The code is linear, so its results for ones are the factors. Each shard has its one in a
    /// different one of the 32 symbols of a block, so one decoding yields all factors.
    fn factors(
        &mut self,
        have: &[(usize, Bytes)],
        missing: &[usize],
    ) -> Result<Vec<Vec<Option<GfElement>>>, CodeError> {
        let places: Vec<usize> = have.iter().map(|(place, _)| *place).collect();
        if let Some(known) = &self.known
            && known.have == places
            && known.missing == missing
        {
            return Ok(known.factors.clone());
        }
        let tables = tables::get_exp_log();
        let one = tables.exp[0].to_le_bytes();
        let half = BLOCK as usize / 2;
        let mut decoder = ReedSolomonDecoder::new(self.data, self.parity, BLOCK as usize)?;
        for (number, place) in places.iter().enumerate() {
            let mut block = [0; BLOCK as usize];
            block[number % half] = one[0];
            block[number % half + half] = one[1];
            if *place < self.data {
                decoder.add_original_shard(*place, block)?;
            } else {
                decoder.add_recovery_shard(*place - self.data, block)?;
            }
        }
        let decoded = decoder.decode()?;
        let mut factors = Vec::with_capacity(missing.len());
        for place in missing {
            let block = decoded.restored_original(*place).unwrap_or_default();
            let factor = |number: usize| {
                let low = *block.get(number % half)?;
                let high = *block.get(number % half + half)?;
                let factor = GfElement::from_le_bytes([low, high]);
                (factor != 0).then(|| tables.log[usize::from(factor)])
            };
            factors.push((0..places.len()).map(factor).collect());
        }
        self.known = Some(Factors {
            have: places,
            missing: missing.to_vec(),
            factors: factors.clone(),
        });
        Ok(factors)
    }
}

/// Dependence of some data shards on others.
struct Factors {
    have: Vec<usize>,
    missing: Vec<usize>,
    factors: Vec<Vec<Option<GfElement>>>,
}

impl std::fmt::Debug for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Code({}+{})", self.data, self.parity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::seq::SliceRandom;
    use rand::{Rng, SeedableRng};

    fn shards(rng: &mut StdRng, count: usize, length: usize) -> Vec<Bytes> {
        let shard = |_| {
            let mut bytes = vec![0; length];
            rng.fill(&mut bytes[..]);
            Bytes::from(bytes)
        };
        (0..count).map(shard).collect()
    }

    fn parity_of(code: &mut Code, shards: &[Bytes], count: usize) -> Vec<Bytes> {
        let mut parity = vec![Vec::new(); count];
        code.encode(shards, &mut parity).unwrap();
        parity.into_iter().map(Bytes::from).collect()
    }

    #[test]
    fn any_so_many_shards_give_back_all() {
        let mut rng = StdRng::seed_from_u64(1);
        for (data, parity) in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (8, 4), (32, 8)] {
            let mut code = Code::new(data, parity);
            for length in [64, 4096, SLICE_BYTES + 192] {
                let mut all = shards(&mut rng, data, length);
                all.extend(parity_of(&mut code, &all, parity));
                for _ in 0..6 {
                    let mut places: Vec<usize> = (0..data + parity).collect();
                    places.shuffle(&mut rng);
                    let (kept, lost) = places.split_at(data);
                    let have: Vec<_> = kept.iter().map(|at| (*at, all[*at].clone())).collect();
                    let made = code.reconstruct(&have, lost).unwrap();
                    for (place, shard) in lost.iter().zip(made) {
                        assert_eq!(shard, all[*place], "{data}+{parity} {length} {place}");
                    }
                }
            }
        }
    }

    #[test]
    fn parity_of_a_range_is_that_range_of_the_parity() {
        let mut rng = StdRng::seed_from_u64(2);
        let mut code = Code::new(4, 2);
        let whole = shards(&mut rng, 4, 4096);
        let parity = parity_of(&mut code, &whole, 2);
        for range in [0..64, 64..128, 1024..4096, 4032..4096] {
            let part: Vec<Bytes> = whole.iter().map(|s| s.slice(range.clone())).collect();
            let of_part = parity_of(&mut code, &part, 2);
            for (part, parity) in of_part.iter().zip(&parity) {
                assert_eq!(*part, parity.slice(range.clone()));
            }
        }
    }

    #[test]
    fn holes_have_no_parity() {
        let mut code = Code::new(5, 3);
        let zeros = vec![Bytes::from(vec![0; 128]); 5];
        let parity = parity_of(&mut code, &zeros, 3);
        assert!(parity.iter().flatten().all(|byte| *byte == 0));
    }

    #[test]
    fn too_few_shards_are_refused() {
        let have = [(0, Bytes::from(vec![1; 64]))];
        assert!(Code::new(2, 1).reconstruct(&have, &[1]).is_err());
    }

    /// The current library must read what was written years ago.
    #[test]
    fn the_format_stays() {
        let mut sums = Vec::new();
        for (data, parity) in [(2, 1), (4, 2), (6, 3), (10, 8)] {
            let shard = |place: usize| -> Bytes {
                (0..256)
                    .map(|at| (place * 37 + at * 11) as u8)
                    .collect::<Vec<_>>()
                    .into()
            };
            let whole: Vec<Bytes> = (0..data).map(shard).collect();
            let mut sum = 0;
            for bytes in parity_of(&mut Code::new(data, parity), &whole, parity) {
                sum = crc32c::crc32c_append(sum, &bytes);
            }
            sums.push(sum);
        }
        assert_eq!(sums, [0x8896_1a7c, 0xf6fd_aab5, 0xf3db_2361, 0x2bd1_9be9]);
    }
}
