//! Answers of servers that are kept for a few seconds. Many browsers then make no more calls than
//! one.
//!
//! Requests for the same answer wait for one question. An answer that took long is kept longer: the
//! servers are asked for at most a quarter of the time.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The shortest time for which an answer is kept.
const KEPT: Duration = Duration::from_secs(4);
/// An answer is kept for this many times the time that it took.
const KEPT_TIMES: u32 = 3;
/// The most answers of one kind. A further one replaces the oldest.
const ANSWERS_MAX: usize = 64;

struct Answer<V> {
    value: Arc<V>,
    until: Instant,
}

/// The place of an answer. Its lock is held during the question.
type Slot<V> = Arc<tokio::sync::Mutex<Option<Answer<V>>>>;

/// Answers by key.
pub(crate) struct Cache<K, V> {
    slots: Mutex<HashMap<K, (Instant, Slot<V>)>>,
}

impl<K, V> Default for Cache<K, V> {
    fn default() -> Self {
        Self {
            slots: Mutex::new(HashMap::new()),
        }
    }
}

impl<K: Clone + Eq + Hash, V> Cache<K, V> {
    /// The answer of a key: the kept one, or that of `ask`.
    pub(crate) async fn get(&self, key: K, ask: impl Future<Output = V>) -> Arc<V> {
        let slot = self.slot(key);
        let mut answer = slot.lock().await;
        let begun = Instant::now();
        if let Some(kept) = answer.as_ref().filter(|kept| begun < kept.until) {
            return kept.value.clone();
        }
        let value = Arc::new(ask.await);
        let ended = Instant::now();
        *answer = Some(Answer {
            value: value.clone(),
            until: ended + KEPT.max((ended - begun) * KEPT_TIMES),
        });
        value
    }

    fn slot(&self, key: K) -> Slot<V> {
        let mut slots = self.slots.lock();
        if slots.len() >= ANSWERS_MAX && !slots.contains_key(&key) {
            let oldest = slots.iter().min_by_key(|(_, (made, _))| *made);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                slots.remove(&oldest);
            }
        }
        let slot = slots
            .entry(key)
            .or_insert_with(|| (Instant::now(), Slot::default()));
        slot.1.clone()
    }

    /// Forgets all answers, after a change.
    pub(crate) fn clear(&self) {
        self.slots.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ten_requests_are_one_question() {
        let (cache, asked) = (Cache::default(), AtomicU32::new(0));
        let ask = async || {
            let took = Duration::from_secs(10);
            let ask = async {
                tokio::time::sleep(took).await;
                asked.fetch_add(1, Ordering::SeqCst)
            };
            *cache.get("a", ask).await
        };
        let answers = futures_util::future::join_all((0..10).map(|_| ask())).await;
        assert_eq!(answers, [0; 10]);
        // The question took 10 s.
        tokio::time::advance(Duration::from_secs(29)).await;
        assert_eq!(ask().await, 0);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(ask().await, 1);
        cache.clear();
        assert_eq!(ask().await, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_have_a_bound() {
        let cache = Cache::default();
        for key in 0..ANSWERS_MAX * 2 {
            tokio::time::advance(Duration::from_millis(1)).await;
            cache.get(key, async {}).await;
        }
        assert_eq!(cache.slots.lock().len(), ANSWERS_MAX);
    }
}
