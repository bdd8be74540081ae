#include "messages/frame.hpp"

namespace troupe::messages {

std::size_t item_bytes(dtype type) noexcept {
  switch (type) {
    case dtype::f64:
    case dtype::i64:
      return 8;
    case dtype::f32:
    case dtype::i32:
      return 4;
    case dtype::f16:
    case dtype::bf16:
    case dtype::i16:
      return 2;
    case dtype::i8:
    case dtype::u8:
    case dtype::boolean:
      return 1;
  }
  return 0;
}

bool is_floating(dtype type) noexcept {
  return type == dtype::f32 || type == dtype::f64 || type == dtype::f16 || type == dtype::bf16;
}

std::string to_string(const device_ref& device) {
  return device.is_host() ? "cpu" : "cuda:" + std::to_string(device.index);
}

}  // namespace troupe::messages
