#pragma once

#include "optimizers/algorithm.hpp"

/// The built-in algorithms. Options that they have in common: `lr`, the learning rate;
/// `weight_decay`, which is added to the gradient as weight_decay x parameter (L2) unless an
/// algorithm says that it is decoupled, that is, shrinks the parameter by lr x weight_decay;
/// `maximize`, which negates the gradient; `eps`, which keeps a division finite. A state slot
/// starts from 0 unless stated otherwise, and "step" counts a parameter's own updates. PyTorch
/// means torch.optim of version 2.11, whose names and defaults are kept.
namespace troupe::optimizers {

/// Stochastic gradient descent, bitwise equal to torch.optim.SGD (on a CPU with FMA, where
/// PyTorch's own kernels use it). Options: lr, momentum, dampening, weight_decay, nesterov,
/// maximize. State: "momentum_buffer", which exists once momentum is used; a parameter's first
/// buffer is a copy of its first gradient (with weight decay added). bf16, f16, sparse gradients
/// and other devices use ATen's operators.
[[nodiscard]] algorithm sgd();

/// Quasi-hyperbolic momentum: Ma and Yarats, "Quasi-hyperbolic momentum and Adam for deep
/// learning", 2019. The step is nu of the momentum, an average of gradients, and 1 - nu of the
/// gradient itself. Options: lr, momentum, nu, weight_decay, weight_decay_type ("grad": L2;
/// "direct": decoupled). State: "momentum_buffer".
[[nodiscard]] algorithm qhm();

/// Kingma and Ba, "Adam: a method for stochastic optimization", 2015; amsgrad: Reddi et al., "On
/// the convergence of Adam and beyond", 2018. As torch.optim.Adam. Options: lr, beta1, beta2, eps,
/// weight_decay, amsgrad, maximize. State: "exp_avg", "exp_avg_sq", "step"; with amsgrad
/// "max_exp_avg_sq".
[[nodiscard]] algorithm adam();

/// Adam with decoupled weight decay: Loshchilov and Hutter, "Decoupled weight decay
/// regularization", 2019. As torch.optim.AdamW. Options and state: as adam.
[[nodiscard]] algorithm adamw();

/// Duchi et al., "Adaptive subgradient methods for online learning and stochastic optimization",
/// 2011. As torch.optim.Adagrad. Options: lr, lr_decay, weight_decay, initial_accumulator_value,
/// eps, maximize. State: "sum", which starts from initial_accumulator_value, and "step".
[[nodiscard]] algorithm adagrad();

/// Zeiler, "ADADELTA: an adaptive learning rate method", 2012. As torch.optim.Adadelta. Options:
/// lr, rho, eps, weight_decay, maximize. State: "square_avg", "acc_delta".
[[nodiscard]] algorithm adadelta();

/// Tieleman and Hinton, "Lecture 6.5", 2012; centred: Graves, "Generating sequences with recurrent
/// neural networks", 2013. As torch.optim.RMSprop. Options: lr, alpha, eps, weight_decay, momentum,
/// centered, maximize. State: "square_avg"; with momentum "momentum_buffer", if centred "grad_avg".
[[nodiscard]] algorithm rmsprop();

/// Riedmiller and Braun, "A direct adaptive method for faster backpropagation learning: the RPROP
/// algorithm", 1993. As torch.optim.Rprop. Options: lr (the initial step size), etaminus, etaplus,
/// step_min, step_max, maximize. State: "prev", "step_size".
[[nodiscard]] algorithm rprop();

/// Adam by the infinity norm: Kingma and Ba, 2015. As torch.optim.Adamax. Options: lr, beta1,
/// beta2, eps, weight_decay, maximize. State: "exp_avg", "exp_inf", "step".
[[nodiscard]] algorithm adamax();

/// Liu et al., "On the variance of the adaptive learning rate and beyond", 2020. As
/// torch.optim.RAdam. Options: lr, beta1, beta2, eps, weight_decay, decoupled_weight_decay,
/// maximize. State: "exp_avg", "exp_avg_sq", "step".
[[nodiscard]] algorithm radam();

/// Dozat, "Incorporating Nesterov momentum into Adam", 2016. As torch.optim.NAdam. Options: lr,
/// beta1, beta2, eps, weight_decay, momentum_decay, decoupled_weight_decay, maximize. State:
/// "exp_avg", "exp_avg_sq", "step", "mu_product" (starts from 1).
[[nodiscard]] algorithm nadam();

/// Chen et al., "Symbolic discovery of optimization algorithms", 2023: the sign of a momentum.
/// Options: lr, beta1, beta2, weight_decay (decoupled), maximize. State: "exp_avg".
[[nodiscard]] algorithm lion();

/// You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", 2020:
/// Adam's step, scaled for each parameter by the ratio of the parameter's norm to the step's (1 if
/// either is 0). Options: lr, beta1, beta2, eps, weight_decay (added to the step before its norm is
/// taken), maximize. State: "exp_avg", "exp_avg_sq", "step".
[[nodiscard]] algorithm lamb();

/// Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024, as
/// torch.optim.Muon: the momentum of a matrix is orthogonalized by Newton-Schulz iterations in
/// bf16. Parameters of another rank, and all with orthogonal = 0 (in a parameter group: embeddings,
/// the last layer), take AdamW's step with adamw_lr_ratio x lr. Options: lr, momentum, nesterov,
/// ns_steps, eps, weight_decay (decoupled), adjust_lr ("original" or "match_rms_adamw"),
/// orthogonal, adamw_lr_ratio, beta1, beta2, adamw_eps. State: "momentum_buffer" of matrices,
/// "exp_avg", "exp_avg_sq" and "step" of the others.
[[nodiscard]] algorithm muon();

/// The registry of all of them, for one instruction set.
[[nodiscard]] registry built_in_at(simd level);

}  // namespace troupe::optimizers
