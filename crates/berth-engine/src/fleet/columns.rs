//! The numbers a scan reads: one column per resource, one lane per node, in blocks of 64.
//!
//! Everything here is derived from the rows and can be rebuilt from them. A block belongs to one
//! zone, so that whatever holds for a whole zone is one number per block and not one per node.

/// Nodes per block: one bit each in a word.
pub(crate) const LANES: usize = 64;

/// A node's place in the columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeIndex(pub(crate) u32);

impl NodeIndex {
    /// From a block and a lane in it.
    pub(crate) fn at(block: usize, lane: usize) -> Self {
        Self(u32::try_from(block * LANES + lane).unwrap_or(u32::MAX))
    }

    /// The block it is in.
    pub(crate) const fn block(self) -> usize {
        self.0 as usize / LANES
    }

    /// Its lane in the block.
    pub(crate) const fn lane(self) -> usize {
        self.0 as usize % LANES
    }

    /// As an index of rows.
    pub(crate) const fn as_usize(self) -> usize {
        self.0 as usize
    }
}

/// 64 numbers that start on a cache line, so that no vector load straddles two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(64))]
pub(crate) struct Block<T>(pub(crate) [T; LANES]);

/// One number per node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Column<T> {
    blocks: Vec<Block<T>>,
    fill: T,
}

impl<T: Copy> Column<T> {
    /// An empty column; lanes without a node hold `fill`.
    pub(crate) const fn new(fill: T) -> Self {
        Self { blocks: Vec::new(), fill }
    }

    /// Adds blocks until there are this many.
    pub(crate) fn grow(&mut self, blocks: usize) {
        self.blocks.resize(blocks, Block([self.fill; LANES]));
    }

    /// One node's number.
    pub(crate) fn get(&self, index: NodeIndex) -> T {
        self.blocks[index.block()].0[index.lane()]
    }

    /// Sets one node's number.
    pub(crate) fn set(&mut self, index: NodeIndex, value: T) {
        self.blocks[index.block()].0[index.lane()] = value;
    }

    /// All blocks.
    pub(crate) fn blocks(&self) -> &[Block<T>] {
        &self.blocks
    }
}

/// One bit per node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bits {
    words: Vec<u64>,
}

impl Bits {
    /// Adds clear words until there are this many.
    pub(crate) fn grow(&mut self, words: usize) {
        self.words.resize(words, 0);
    }

    /// One node's bit; clear past the end.
    pub(crate) fn get(&self, index: NodeIndex) -> bool {
        self.words.get(index.block()).is_some_and(|word| word >> index.lane() & 1 == 1)
    }

    /// Sets or clears one node's bit.
    pub(crate) fn set(&mut self, index: NodeIndex, on: bool) {
        let bit = 1u64 << index.lane();
        if on {
            self.words[index.block()] |= bit;
        } else {
            self.words[index.block()] &= !bit;
        }
    }

    /// All words.
    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }

    /// All words, to change.
    pub(crate) fn words_mut(&mut self) -> &mut Vec<u64> {
        &mut self.words
    }

    /// Every set bit's index, in order.
    pub(crate) fn indexes(&self) -> impl Iterator<Item = NodeIndex> + '_ {
        self.words.iter().enumerate().flat_map(|(block, &word)| lanes(word, block))
    }
}

/// The indexes of one word's set bits.
pub(crate) fn lanes(word: u64, block: usize) -> impl Iterator<Item = NodeIndex> {
    let mut rest = word;
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let lane = rest.trailing_zeros() as usize;
        rest &= rest - 1;
        Some(NodeIndex::at(block, lane))
    })
}

/// The columns that usage changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Columns {
    /// CPU that may still be promised.
    pub(crate) cpu: Column<i32>,
    /// Memory that may still be promised to one more instance: its overhead is already taken off.
    pub(crate) memory: Column<i32>,
    /// Disk that may still be promised.
    pub(crate) disk: Column<i32>,
    /// Bandwidth that may still be promised.
    pub(crate) bandwidth: Column<i32>,
    /// There is a node.
    pub(crate) present: Bits,
    /// The instance limit is not reached.
    pub(crate) open: Bits,
    /// Accepts a capped instance.
    pub(crate) takes_capped: Bits,
    /// Accepts an uncapped instance.
    pub(crate) takes_uncapped: Bits,
    /// Position in the order of node ids, for ties.
    pub(crate) rank: Column<u32>,
    /// The rack.
    pub(crate) rack: Column<u32>,
    /// The zone of each block.
    pub(crate) zone_of_block: Vec<u32>,
}

impl Columns {
    pub(crate) fn new() -> Self {
        // A lane without a node is never eligible; room that no request fits is a second safeguard.
        let room = Column::new(i32::MIN);
        Self {
            cpu: room.clone(),
            memory: room.clone(),
            disk: room.clone(),
            bandwidth: room,
            present: Bits::default(),
            open: Bits::default(),
            takes_capped: Bits::default(),
            takes_uncapped: Bits::default(),
            rank: Column::new(u32::MAX),
            rack: Column::new(super::NO_DOMAIN),
            zone_of_block: Vec::new(),
        }
    }

    /// Adds one block, all of it in this zone.
    pub(crate) fn add_block(&mut self, zone: u32) {
        self.zone_of_block.push(zone);
        let blocks = self.zone_of_block.len();
        for column in [&mut self.cpu, &mut self.memory, &mut self.disk, &mut self.bandwidth] {
            column.grow(blocks);
        }
        self.rank.grow(blocks);
        self.rack.grow(blocks);
        for bits in
            [&mut self.present, &mut self.open, &mut self.takes_capped, &mut self.takes_uncapped]
        {
            bits.grow(blocks);
        }
    }
}
