//! Decides which parts of an object are garbage, from the device's list and the references of all
//! file servers.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use cellar_wire::List;
use cellar_wire::afsosd::Garbage;
use cellar_wire::object::ObjectId;
use cellar_wire::osd::{Needed, ObjectInfo};

/// A version of an object on a device.
pub(crate) type ObjectVersion = (u32, ObjectId, u64);

/// The age from which an object or version may be garbage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Age {
    /// Time since 1970.
    pub(crate) now: Duration,
    /// Objects and versions written within this time are kept.
    pub(crate) grace: Duration,
}

impl Age {
    fn is_old(&self, seconds: u64) -> bool {
        self.grace.is_zero() || Duration::from_secs(seconds) + self.grace <= self.now
    }

    /// A version number is the time of its store, in microseconds, by the clock of the file server.
    fn is_old_version(&self, version: u64, written: u64) -> bool {
        let begun = Duration::from_micros(version);
        self.is_old(written) && (self.grace.is_zero() || begun + self.grace <= self.now)
    }
}

/// The decision on an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It stays. `true`: parts of it have no reference, but are too young.
    Stays(bool),
    /// Some versions are removed.
    Prune(Needed, Vec<Garbage>),
    /// The whole object is removed.
    Remove(Garbage),
}

/// Decides on an object of the device `osd`, by all `references`.
pub(crate) fn verdict_on(
    osd: u32,
    info: &ObjectInfo,
    references: &[&References],
    age: Age,
) -> Verdict {
    let object = info.object;
    let (mut keep, mut garbage, mut young) = (Vec::new(), Vec::new(), false);
    for known in info.versions.iter() {
        if references
            .iter()
            .any(|all| all.has((osd, object, known.version)))
        {
            keep.push(known.version);
        } else if age.is_old_version(known.version, known.written) {
            garbage.push(Garbage {
                osd,
                object,
                version: known.version,
                bytes: known.length,
                written: known.written,
            });
        } else {
            young = true;
            keep.push(known.version);
        }
    }
    // A reference to another version of the object, made after the list, also needs the object.
    let is_named = references.iter().any(|all| all.has_any(osd, object));
    if keep.is_empty() && !is_named {
        if !age.is_old(info.created) {
            return Verdict::Stays(true);
        }
        return Verdict::Remove(Garbage {
            osd,
            object,
            version: 0,
            bytes: info.allocated,
            written: info.versions.last().map_or(info.created, |v| v.written),
        });
    }
    let Some(newest) = garbage.iter().map(|one| one.version).max() else {
        return Verdict::Stays(young);
    };
    // A version that was not listed is not judged. If it was begun since, it is newer than all of
    // these. With a clock that was set back it may be older, but then it has a reference by now.
    for version in references.iter().flat_map(|all| all.of(osd, object)) {
        if !keep.contains(version) {
            keep.push(*version);
        }
    }
    let Ok(keep) = List::try_from(keep) else {
        // The list of needed versions does not fit into the call.
        return Verdict::Stays(young);
    };
    let needed = Needed {
        object,
        keep,
        below: newest + 1,
    };
    Verdict::Prune(needed, garbage)
}

/// The references of all file servers.
#[derive(Debug, Default)]
pub(crate) struct References(HashMap<(u32, ObjectId), BTreeSet<u64>>);

impl References {
    pub(crate) fn add(&mut self, (osd, object, version): ObjectVersion) {
        self.0.entry((osd, object)).or_default().insert(version);
    }

    /// The versions of an object.
    fn of(&self, osd: u32, object: ObjectId) -> impl Iterator<Item = &u64> {
        self.0.get(&(osd, object)).into_iter().flatten()
    }

    fn has(&self, (osd, object, version): ObjectVersion) -> bool {
        let versions = self.0.get(&(osd, object));
        versions.is_some_and(|versions| versions.contains(&version))
    }

    fn has_any(&self, osd: u32, object: ObjectId) -> bool {
        self.0.contains_key(&(osd, object))
    }
}

#[cfg(test)]
mod tests {
    use cellar_wire::ids::{Uniquifier, VnodeId, VolumeId};
    use cellar_wire::osd::{VERSIONS_MAX, VersionInfo};

    use super::*;

    const MICROS: u64 = 1_000_000;

    fn info(versions: &[u64], created: u64) -> ObjectInfo {
        let version = |second: &u64| VersionInfo {
            version: second * MICROS,
            length: 10,
            written: *second,
        };
        ObjectInfo {
            object: ObjectId {
                volume: VolumeId(1),
                vnode: VnodeId(2),
                uniquifier: Uniquifier(3),
                serial: 4,
            },
            created,
            allocated: 4096,
            versions: List::from_iter_cut(versions.iter().map(version)),
            ..ObjectInfo::default()
        }
    }

    fn verdict(versions: &[u64], created: u64, named: &[u64], grace: u64) -> Verdict {
        let age = Age {
            now: Duration::from_secs(1000),
            grace: Duration::from_secs(grace),
        };
        let info = info(versions, created);
        let mut references = References::default();
        for second in named {
            references.add((9, info.object, second * MICROS));
        }
        verdict_on(9, &info, &[&references], age)
    }

    #[test]
    fn named_and_young_objects_stay() {
        assert_eq!(
            verdict(&[100, 200], 100, &[100, 200], 0),
            Verdict::Stays(false)
        );
        assert_eq!(verdict(&[100, 950], 100, &[100], 100), Verdict::Stays(true));
        assert_eq!(verdict(&[], 950, &[], 100), Verdict::Stays(true));
        let Verdict::Prune(needed, garbage) = verdict(&[100, 200, 300, 950], 100, &[200], 100)
        else {
            panic!("versions 100 and 300 are garbage");
        };
        assert_eq!(needed.keep.to_vec(), [200 * MICROS, 950 * MICROS]);
        assert_eq!(needed.below, 300 * MICROS + 1);
        let gone: Vec<u64> = garbage.iter().map(|one| one.version / MICROS).collect();
        assert_eq!(gone, [100, 300]);
    }

    /// A store named version 300 after the object was listed. The listed versions are removed, the
    /// object is not.
    #[test]
    fn an_object_with_a_version_that_was_not_listed_does_not_go() {
        let Verdict::Prune(needed, garbage) = verdict(&[100, 200], 100, &[300], 100) else {
            panic!("only the listed versions are garbage");
        };
        let keep = needed.keep.to_vec();
        assert_eq!((keep, needed.below), (vec![300 * MICROS], 200 * MICROS + 1));
        assert_eq!(garbage.len(), 2);
    }

    /// A store failed at 200. Then the clock was set back, and a store at 150 came after the object
    /// was listed.
    #[test]
    fn a_version_that_was_not_listed_stays_though_an_older_one_is_garbage() {
        let Verdict::Prune(needed, garbage) = verdict(&[100, 200], 100, &[150], 100) else {
            panic!("only the listed versions are garbage");
        };
        let keep = needed.keep.to_vec();
        assert_eq!((keep, needed.below), (vec![150 * MICROS], 200 * MICROS + 1));
        assert_eq!(garbage.len(), 2);
    }

    /// A list that does not fit into one call is not truncated, because that would remove needed
    /// versions.
    #[test]
    fn an_object_of_which_too_much_is_needed_stays() {
        let all: Vec<u64> = (1..=VERSIONS_MAX as u64).collect();
        assert!(matches!(
            verdict(&all[..9], 0, &all[9..], 0),
            Verdict::Prune(..)
        ));
        let more: Vec<u64> = (10..=VERSIONS_MAX as u64 + 10).collect();
        assert_eq!(verdict(&all[..9], 0, &more, 0), Verdict::Stays(false));
    }

    #[test]
    fn an_object_that_no_file_names_goes_as_a_whole() {
        for versions in [&[][..], &[100], &[100, 899]] {
            let Verdict::Remove(garbage) = verdict(versions, 100, &[], 100) else {
                panic!("{versions:?}");
            };
            assert_eq!((garbage.version, garbage.bytes), (0, 4096));
        }
        assert_eq!(
            verdict(&[100, 901], 100, &[], 100),
            Verdict::Prune(
                Needed {
                    object: info(&[], 0).object,
                    keep: List::from_iter_cut([901 * MICROS]),
                    below: 100 * MICROS + 1,
                },
                vec![Garbage {
                    osd: 9,
                    object: info(&[], 0).object,
                    version: 100 * MICROS,
                    bytes: 10,
                    written: 100,
                }],
            )
        );
    }
}
