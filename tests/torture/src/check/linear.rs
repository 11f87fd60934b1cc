//! Is there an order of the operations that a sequential model explains, in which each operation happens between its start and its end?
//!
//! The search is Wing and Gong's with Lowe's memory of the configurations that led nowhere. No kept library fits: stateright's
//! `LinearizabilityTester`, the only one in Rust that is kept, copies the whole history at each step and remembers nothing, so that
//! thousands of operations are out of reach; its operations have no times, which leases need, and one that never ended has to have an
//! answer. Porcupine is Go. A test compares this one with stateright's on small histories, where both can decide.

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;

use crate::history::Micros;

#[derive(Clone, Debug)]
pub struct Item<C> {
    pub start: Micros,
    /// [`Micros::MAX`] if it never ended.
    pub end: Micros,
    /// False: it may never have happened.
    pub must: bool,
    pub call: C,
}

pub trait Model {
    type Call;
    type State: Clone + Debug + Eq + Hash;

    /// The state after the operation, if its answer can be explained. It happens at `earliest` or later, and not after its end.
    fn step(
        &self,
        state: &Self::State,
        item: &Item<Self::Call>,
        earliest: Micros,
    ) -> Option<Self::State>;

    /// From this state on an operation that may never have happened changes nothing any more.
    fn is_idle(&self, _state: &Self::State, _item: &Item<Self::Call>) -> bool {
        false
    }
}

/// Where no order goes on: the longest explained part ends in this state, and none of these can be next.
#[derive(Debug)]
pub struct Stuck<S> {
    pub explained: usize,
    pub state: S,
    pub next: Vec<usize>,
    /// The search was given up.
    pub undecided: bool,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Place<S> {
    /// All before this one are done, but for those that are open.
    next: usize,
    /// Begun before others that are done, in the order of their starts. What may never have happened stays among them for long, so this is a list of what is
    /// not done and not of what is.
    open: Vec<usize>,
    state: S,
}

/// Too many configurations: neither yes nor no, which is said as if it were no.
const LIMIT: usize = 2_000_000;

/// The items are in the order of their starts. Gives the number of configurations, for the report.
pub fn check<M: Model>(
    model: &M,
    first: M::State,
    items: &[Item<M::Call>],
) -> Result<usize, Stuck<M::State>> {
    let mut seen = HashSet::new();
    let mut deepest =
        Stuck { explained: 0, state: first.clone(), next: Vec::new(), undecided: false };
    let mut stack = vec![(0, Place { next: 0, open: Vec::new(), state: first })];
    while let Some((count, place)) = stack.pop() {
        let next = candidates(items, &place);
        if next.must.is_empty() {
            return Ok(seen.len());
        }
        if count >= deepest.explained {
            (deepest.explained, deepest.state) = (count, place.state.clone());
            deepest.next.clone_from(&next.must);
        }
        // The last one on the stack is looked at first: what must happen, by its end, before what may.
        for &index in next.may.iter().chain(next.must.iter().rev()) {
            let item = &items[index];
            let earliest = next.earliest.max(item.start);
            if let Some(state) = model.step(&place.state, item, earliest) {
                let after = advance(model, items, &place, index, state);
                if seen.insert(after.clone()) {
                    stack.push((count + 1, after));
                }
            }
        }
        if seen.len() > LIMIT {
            deepest.undecided = true;
            return Err(deepest);
        }
    }
    Err(deepest)
}

struct Next {
    must: Vec<usize>,
    may: Vec<usize>,
    /// The last start of all that is done.
    earliest: Micros,
}

/// What may be next: begun before anything that must happen and is not done has ended.
fn candidates<C, S>(items: &[Item<C>], place: &Place<S>) -> Next {
    let mut first_end = Micros::MAX;
    let mut some = Vec::new();
    for index in place.open.iter().copied().chain(place.next..items.len()) {
        let item = &items[index];
        if item.start > first_end {
            break;
        }
        if item.must {
            first_end = first_end.min(item.end);
        }
        some.push(index);
    }
    some.retain(|&index| items[index].start <= first_end);
    let (mut must, may): (Vec<_>, Vec<_>) = some.into_iter().partition(|&index| items[index].must);
    must.sort_by_key(|&index| items[index].end);
    let earliest = place.next.checked_sub(1).map_or(Micros::MIN, |last| items[last].start);
    Next { must, may, earliest }
}

fn advance<M: Model>(
    model: &M,
    items: &[Item<M::Call>],
    place: &Place<M::State>,
    index: usize,
    state: M::State,
) -> Place<M::State> {
    let mut open = place.open.clone();
    open.extend(place.next..index);
    open.retain(|&other| {
        other != index && (items[other].must || !model.is_idle(&state, &items[other]))
    });
    Place { next: place.next.max(index + 1), open, state }
}

#[cfg(test)]
mod tests {
    use stateright::semantics::register::{Register as Spec, RegisterOp, RegisterRet};
    use stateright::semantics::{ConsistencyTester, LinearizabilityTester};

    use super::*;
    use crate::dice::Dice;

    struct Register;

    #[derive(Clone, Debug)]
    enum Call {
        Write(u8),
        Read(u8),
    }

    impl Model for Register {
        type Call = Call;
        type State = u8;

        fn step(&self, state: &u8, item: &Item<Call>, _: Micros) -> Option<u8> {
            match item.call {
                Call::Write(value) => Some(value),
                Call::Read(value) => (value == *state).then_some(value),
            }
        }
    }

    /// Begins and ends of three threads at random, with answers at random: some of it can be explained, some cannot.
    fn random(seed: u64) -> (Vec<Item<Call>>, bool) {
        let mut dice = Dice::new(seed);
        let mut tester = LinearizabilityTester::new(Spec(0_u8));
        let mut open: [Option<usize>; 3] = [None; 3];
        let mut items: Vec<Item<Call>> = Vec::new();
        for at in 0..16 {
            let thread = dice.below(3) as usize;
            let value = dice.below(3) as u8;
            if let Some(index) = open[thread].take() {
                items[index].end = at;
                items[index].must = true;
                let ret = match &mut items[index].call {
                    Call::Write(_) => RegisterRet::WriteOk,
                    Call::Read(read) => {
                        *read = value;
                        RegisterRet::ReadOk(value)
                    }
                };
                tester.on_return(thread, ret).unwrap();
            } else {
                let is_write = dice.one_in(2);
                let (call, op) = if is_write {
                    (Call::Write(value), RegisterOp::Write(value))
                } else {
                    (Call::Read(0), RegisterOp::Read)
                };
                open[thread] = Some(items.len());
                items.push(Item { start: at, end: Micros::MAX, must: false, call });
                tester.on_invoke(thread, op).unwrap();
            }
        }
        // A read without an answer says nothing.
        items.retain(|item| item.must || matches!(item.call, Call::Write(_)));
        (items, tester.is_consistent())
    }

    #[test]
    fn it_says_what_stateright_says() {
        let mut counts = [0, 0];
        for seed in 0..3_000 {
            let (items, expected) = random(seed);
            let found = check(&Register, 0, &items).is_ok();
            assert_eq!(found, expected, "seed {seed}: {items:?}");
            counts[usize::from(expected)] += 1;
        }
        assert!(counts.iter().all(|&count| count > 300), "both answers: {counts:?}");
    }
}
