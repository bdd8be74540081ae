#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/blueprint/model_blueprint.hpp"
#include "messages/base/error.hpp"

namespace troupe::apps {

/// The networks that `build_resnet` knows, by torchvision's names.
[[nodiscard]] std::vector<std::string> resnet_names();

/// A residual network as a list of layers `conv1, bn1, relu, maxpool, layer1.0, ..., layer4.k,
/// avgpool, fc` over images [N, 3, H, W] f32, giving logits [N, classes] f32. Names, order and
/// shapes of its tensors are torchvision's, and so is the initialisation: seed S gives, to the bit,
/// the weights of torch.manual_seed(S); torchvision.models.NAME(num_classes=classes).
/// He et al., "Deep Residual Learning for Image Recognition", 2016; torchvision's variant puts a
/// bottleneck's stride on its 3x3 convolution. ResNeXt: Xie et al., 2017.
/// Errors: bad_config for an unknown name (listing the known ones) or less than one class.
[[nodiscard]] result<engine::model_blueprint> resnet_blueprint(const std::string& name,
                                                               std::int64_t classes);

/// The whole network with its weights. Errors: as there.
[[nodiscard]] result<engine::model> build_resnet(const std::string& name, std::int64_t classes,
                                                 std::uint64_t seed);

/// Fewest samples that such a network can be trained on at once, of images [C, H, W]: 2 where
/// `layer4` has one pixel a channel, since a batch norm needs more than one value of each.
[[nodiscard]] std::int64_t least_resnet_samples(const std::vector<std::int64_t>& sample_shape);

}  // namespace troupe::apps
