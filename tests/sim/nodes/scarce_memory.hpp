#pragma once

#include <cstddef>
#include <cstdint>

/// Memory for tensors and for what a link receives that can run out. The program of which this is
/// a part takes the place of posix_memalign, which LibTorch and the link's buffer pool call.
namespace troupe::tests::scarce_memory {

/// False in a build with sanitizers, which have a posix_memalign of their own.
[[nodiscard]] bool is_here() noexcept;

/// From now on the block of this number (the first is 1) is refused, once, of those of `least`
/// bytes or more that threads which are not exempt ask for.
void refuse(std::uint64_t number, std::size_t least);

/// Nothing is refused from now on. Returns whether something was, since the last `refuse`.
bool relieve();

/// The calling thread gets all that it asks for: it is the test's.
void exempt_this_thread() noexcept;

}  // namespace troupe::tests::scarce_memory
