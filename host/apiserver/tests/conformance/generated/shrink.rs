//! Shrinking: the shortest sequence that still shows a difference.

use serde_json::Value;

use super::choice::{list_pointers, remove_at};
use super::run::{AnswerDifference, Block, ServerPair, run_steps};
use super::sequence::Step;

/// Maximum number of runs that look for a shorter sequence.
const MAX_RUNS: usize = 200;

/// Removes steps and parts of bodies while the difference stays. Returns the steps that are left, and their difference.
pub async fn shrink_steps(
    servers: &ServerPair,
    block: &Block,
    steps: &[Step],
    difference: AnswerDifference,
) -> (Vec<Step>, AnswerDifference) {
    let mut shrinking = Shrinking {
        servers,
        block,
        steps: steps[..=difference.step].to_vec(),
        difference,
        runs: 0,
    };
    shrinking.remove_steps().await;
    shrinking.remove_parts().await;
    (shrinking.steps, shrinking.difference)
}

struct Shrinking<'a> {
    servers: &'a ServerPair,
    block: &'a Block,
    steps: Vec<Step>,
    difference: AnswerDifference,
    runs: usize,
}

impl Shrinking<'_> {
    /// Keeps shorter steps if they show the same difference.
    async fn try_steps(&mut self, shorter: Vec<Step>) -> bool {
        if self.runs >= MAX_RUNS {
            return false;
        }
        self.runs += 1;
        match run_steps(self.servers, self.block, &shorter).await {
            Some(found) if found.kind == self.difference.kind => {
                self.steps = shorter[..=found.step].to_vec();
                self.difference = found;
                true
            }
            _ => false,
        }
    }

    async fn remove_steps(&mut self) {
        let mut index = 0;
        while index + 1 < self.steps.len() {
            let mut shorter = self.steps.clone();
            shorter.remove(index);
            if !self.try_steps(shorter).await {
                index += 1;
            }
        }
    }

    async fn remove_parts(&mut self) {
        for index in 0..self.steps.len() {
            let mut at = 0;
            // Parents come before what is below them, so that the largest parts go first.
            while let Some(pointer) = self.pointers(index).get(at).cloned() {
                let mut shorter = self.steps.clone();
                let removed = body_of(&mut shorter, index).is_some_and(|body| remove_at(body, &pointer));
                if !removed || !self.try_steps(shorter).await {
                    at += 1;
                }
            }
        }
    }

    fn pointers(&mut self, index: usize) -> Vec<String> {
        let pointers = body_of(&mut self.steps, index).map(|body| list_pointers(body));
        pointers.unwrap_or_default()
    }
}

fn body_of(steps: &mut [Step], index: usize) -> Option<&mut Value> {
    match steps.get_mut(index)? {
        Step::Request(request) => Some(&mut request.body),
        Step::Settle(_) => None,
    }
}
