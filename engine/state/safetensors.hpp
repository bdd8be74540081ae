#pragma once

#include <filesystem>
#include <vector>

#include "engine/base/named_tensor.hpp"
#include "engine/state/atomic_file.hpp"
#include "engine/state/tensor_stream.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

// The format: 8 bytes of header length (little endian), a JSON header padded with spaces, then the
// bytes of the tensors without gaps (https://github.com/huggingface/safetensors). Types: F64 F32
// F16 BF16 I64 I32 I16 I8 U8 BOOL. Every function may be called from any thread.

/// Reads every tensor of a safetensors file, in the order of its header; `__metadata__` is checked
/// and passed over. The file is mapped
/// copy-on-write and the tensors own the mapping: writing to one never changes the file, replacing
/// the file by a rename is safe, truncating it in place is not. Errors: bad_data naming the file
/// and, where there is one, the tensor.
[[nodiscard]] result<std::vector<named_tensor>> load_safetensors(const std::filesystem::path& file);

/// Writes tensors as they come beside `file`, syncs, then renames over it, so that a reader never
/// sees half a file. The same content gives the same bytes. Errors: io_failed naming the file,
/// which is then as it was before; bad_data naming a tensor that the format cannot hold (its type,
/// a name given twice, text that is not UTF-8) or that came in part; those of the stream.
[[nodiscard]] result<void> save_safetensors(const std::filesystem::path& file,
                                            const tensor_stream& tensors,
                                            durability how = durability::synced);

/// The same for tensors in memory (any device and dense layout; stored contiguous).
[[nodiscard]] result<void> save_safetensors(const std::filesystem::path& file,
                                            const std::vector<named_tensor>& tensors);

}  // namespace troupe::engine
