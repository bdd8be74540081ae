#include "actors/wire/tensors.hpp"

#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>

#include <array>
#include <memory>
#include <stdexcept>
#include <utility>

namespace troupe::actors {
namespace {

using messages::dtype;

constexpr std::array<std::pair<dtype, at::ScalarType>, 10> types{{
    {dtype::f32, at::kFloat},
    {dtype::f64, at::kDouble},
    {dtype::f16, at::kHalf},
    {dtype::bf16, at::kBFloat16},
    {dtype::i64, at::kLong},
    {dtype::i32, at::kInt},
    {dtype::i16, at::kShort},
    {dtype::i8, at::kChar},
    {dtype::u8, at::kByte},
    {dtype::boolean, at::kBool},
}};

messages::device_ref device_ref_of(const at::Tensor& tensor) {
  const at::Device device = tensor.device();
  if (device.is_cpu()) return {};
  if (device.is_cuda()) return {messages::device_ref::kind::cuda, device.index()};
  throw std::invalid_argument("tensors on " + device.str() + " cannot be sent");
}

at::Device torch_device(const messages::device_ref& device) {
  return device.is_host() ? at::Device(at::kCPU) : at::Device(at::kCUDA, device.index);
}

}  // namespace

dtype wire_type(at::ScalarType type) {
  for (const auto& [wire, scalar] : types) {
    if (scalar == type) return wire;
  }
  throw std::invalid_argument(std::string("tensors of type ") + c10::toString(type) +
                              " cannot be sent");
}

at::ScalarType scalar_type(dtype type) {
  for (const auto& [wire, scalar] : types) {
    if (wire == type) return scalar;
  }
  throw std::invalid_argument("unknown element type on the wire");
}

messages::wire_tensor to_wire(const at::Tensor& tensor) {
  auto dense = tensor.detach().resolve_neg();
  const auto device = device_ref_of(dense);
  if (!dense.is_non_overlapping_and_dense()) dense = dense.contiguous();
  auto owner = std::make_shared<at::Tensor>(dense);
  return {
      .descriptor = {.type = wire_type(dense.scalar_type()),
                     .shape = dense.sizes().vec(),
                     .strides = dense.strides().vec(),
                     .device = device},
      .bytes = {.data = static_cast<std::byte*>(dense.data_ptr()),
                .bytes = static_cast<std::size_t>(dense.nbytes()),
                .owner = std::move(owner),
                .device = device},
  };
}

at::Tensor from_wire(const messages::wire_tensor& arrived, lent how) {
  const auto options = at::TensorOptions(scalar_type(arrived.descriptor.type))
                           .device(torch_device(arrived.bytes.device));
  const auto& [type, shape, strides, device] = arrived.descriptor;
  if (arrived.bytes.bytes == 0) return at::empty_strided(shape, strides, options);
  auto release = [owner = arrived.bytes.owner](void*) {};
  auto tensor = at::from_blob(arrived.bytes.data, shape, strides, std::move(release), options);
  return arrived.bytes.read_only && how == lent::copied ? tensor.clone() : tensor;
}

}  // namespace troupe::actors
