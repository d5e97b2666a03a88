//! Sums the instructions of a single-stepped thread by place, from where it was before each of them.

use std::{
    collections::{BTreeMap, HashMap},
    rc::Rc,
};

use super::{Instructions, UNITS, process_code::CodeOwner};

/// Bytes of the longest instruction.
const MAX_INSTRUCTION_BYTES: usize = 15;
/// Bytes by which a call moves the stack pointer.
const RETURN_ADDRESS_BYTES: usize = 8;
/// Place of the code of components.
const COMPONENTS: &str = "components";

/// Where a thread was before an instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThreadStep {
    /// Address of the instruction.
    pub instruction: usize,
    /// Stack pointer.
    pub stack: usize,
}

impl ThreadStep {
    /// True if the instruction before has called a function: the return address is on the stack, and no instruction follows the
    /// other one as after a push.
    fn is_call_from(self, before: Self) -> bool {
        let next = before.instruction..=before.instruction + MAX_INSTRUCTION_BYTES;
        self.stack + RETURN_ADDRESS_BYTES == before.stack && !next.contains(&self.instruction)
    }
}

/// A stack with the functions on it that have not returned.
#[derive(Default)]
struct CallStack {
    frames: Vec<StackFrame>,
    /// Stack of the function that continued this one, if it is that of a fiber.
    resumed_by: Option<usize>,
}

/// A function that has not returned.
struct StackFrame {
    /// Stack pointer at its first instruction.
    entry: usize,
    /// File of the host that it executed last.
    file: Option<Rc<str>>,
}

/// The stacks of a thread, of which all but one are those of fibers, and the one that it uses.
#[derive(Default)]
struct CallStacks {
    stacks: BTreeMap<usize, CallStack>,
    current: Option<usize>,
    before: Option<ThreadStep>,
}

impl CallStacks {
    /// Follows the thread to a step on a stack.
    fn advance(&mut self, step: ThreadStep, stack: usize) {
        let left = self.current.replace(stack);
        let is_same = left == Some(stack);
        let is_back = left.is_some_and(|left| self.stacks[&left].resumed_by == Some(stack));
        let current = self.stacks.entry(stack).or_default();
        if !is_same && !is_back {
            current.resumed_by = left;
        }
        while current.frames.pop_if(|frame| step.stack > frame.entry).is_some() {}
        let is_call = self.before.is_some_and(|before| step.is_call_from(before));
        if current.frames.is_empty() || is_call {
            current.frames.push(StackFrame {
                entry: step.stack,
                file: None,
            });
        }
        self.before = Some(step);
    }

    /// Sets the file of the host that the function executes.
    fn set_file(&mut self, file: &Rc<str>) {
        let current = self.current.and_then(|stack| self.stacks.get_mut(&stack));
        if let Some(frame) = current.and_then(|stack| stack.frames.last_mut()) {
            frame.file = Some(file.clone());
        }
    }

    /// Returns the file of the host that has called what the thread executes, also as a fiber.
    fn find_file(&self) -> Option<Rc<str>> {
        let mut stack = self.stacks.get(&self.current?)?;
        // Two fibers do not continue each other in turn.
        for _ in 0..self.stacks.len() {
            let mut files = stack.frames.iter().rev().filter_map(|frame| frame.file.clone());
            if let Some(file) = files.next() {
                return Some(file);
            }
            stack = self.stacks.get(&stack.resumed_by?)?;
        }
        None
    }
}

/// Sums instructions by place. Stacks are told apart by `find_stack` of the stack pointer.
pub(super) fn sum_steps(
    steps: impl Iterator<Item = ThreadStep>,
    mut find_owner: impl FnMut(usize) -> CodeOwner,
    find_stack: impl Fn(usize) -> usize,
) -> Instructions {
    let (mut by_place, mut stacks) = (HashMap::<Rc<str>, u64>::new(), CallStacks::default());
    for step in steps {
        stacks.advance(step, find_stack(step.stack));
        let place = match find_owner(step.instruction) {
            CodeOwner::Library => continue,
            CodeOwner::Components => COMPONENTS.into(),
            CodeOwner::Crate(name) => stacks.find_file().unwrap_or(name),
            CodeOwner::HostFile(file) => {
                stacks.set_file(&file);
                file
            }
        };
        *by_place.entry(place).or_default() += 1;
    }
    let mut sum = Instructions::new(&UNITS);
    for (place, count) in by_place {
        sum.add(&place, [count as f64]);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums steps, which are addresses of instructions and of the stack, in a process whose stacks have 0x1000 bytes.
    fn sum(steps: &[(usize, usize)]) -> Instructions {
        // Addresses of the files a and b, of a crate, of a library and of a component begin with these digits.
        let find_owner = |address: usize| match address / 0x1000 {
            1 => CodeOwner::HostFile("a".into()),
            2 => CodeOwner::HostFile("b".into()),
            3 => CodeOwner::Crate("core".into()),
            4 => CodeOwner::Library,
            _ => CodeOwner::Components,
        };
        let steps = steps
            .iter()
            .map(|&(instruction, stack)| ThreadStep { instruction, stack });
        sum_steps(steps, find_owner, |stack| stack / 0x1000)
    }

    fn parse(counts: &str) -> Instructions {
        Instructions::parse(&UNITS, counts).unwrap()
    }

    #[test]
    fn instruction_counts_for_the_innermost_file_of_the_host_on_the_stack() {
        let steps = [
            (0x3000, 0x100), // before any file of the host
            (0x1000, 0xf8),  // calls a
            (0x1004, 0xf0),  // which pushes a register
            (0x3100, 0xe8),  // and calls core
            (0x2000, 0xe0),  // which calls b
            (0x4000, 0xd8),  // which calls a library
            (0x2010, 0xe0),  // which returns
            (0x3110, 0xe8),  // b returns to core, called by a
            (0x5000, 0xe0),  // which calls a component
            (0x3120, 0xe8),  // which returns
            (0x1010, 0xf0),  // core returns to a
            (0x3010, 0x100), // a returns
        ];
        assert_eq!(sum(&steps), parse("6 a\n2 b\n2 core\n1 components\n"));
    }

    #[test]
    fn fiber_is_called_by_the_file_that_continues_it() {
        let steps = [
            (0x1000, 0x100),  // a
            (0x3000, 0xf8),   // calls core
            (0x3100, 0x2100), // which continues a fiber
            (0x2000, 0x20f8), // which calls b
            (0x3200, 0x20f0), // which calls core
            (0x3010, 0xf8),   // which suspends the fiber
            (0x1010, 0x100),  // and returns to a
            (0x3020, 0xf8),   // which calls core again
            (0x3210, 0x20f0), // which continues the fiber
            (0x2010, 0x20f8), // where core returns to b
            (0x3110, 0x2100), // which returns
        ];
        assert_eq!(sum(&steps), parse("7 a\n4 b\n"));
    }
}
